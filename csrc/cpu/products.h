// Matrix products at the sizes of one client's batch, which tuned libraries are not made for: a few rows against a
// weight matrix, and windows of an image against a kernel without copying them out first (im2col).
#pragma once

#include <cstdint>

namespace fastfed {

// c[i, j] = alpha * sum + (plus ? plus[i * plus_row + j] : 0), where plus may be c itself, with
// sum = sum over s < segments, p < steps of a[i * a_row + s * a_segment + p * a_step] * b[s * b_segment + p * b_step +
// j]. Rows of `a` may overlap: the windows of a convolution are rows whose distance is less than their length.
struct Outer {
  std::int64_t rows, cols, steps, segments;
  const float* a;
  std::int64_t a_row, a_step, a_segment;
  const float* b;
  std::int64_t b_step, b_segment;
  float* c;
  std::int64_t c_row;
  float alpha;
  const float* plus;
  std::int64_t plus_row;
  // The same for further groups of as many rows: their `a` lie a_group apart, in c and plus they follow each other.
  std::int64_t groups = 1, a_group = 0;
};

// c[i, j] = sum over k of a[i * a_row + k] * b[j * b_row + k] + (bias ? bias[j] : 0)
struct Dot {
  std::int64_t rows, cols, depth;
  const float* a;
  std::int64_t a_row;
  const float* b;
  std::int64_t b_row;
  float* c;
  std::int64_t c_row;
  const float* bias;
};

struct Products {
  void (*outer)(const Outer&);
  void (*dot)(const Dot&);
};

const Products& products();  // at the SIMD level of the other inner loops

// ---- dense layers: row-major matrices, one thread ------------------------------------------------------------------

// y (rows, out) = x (rows, in) . w (out, in)^T + bias (out,) or 0
void product_nt(std::int64_t rows, std::int64_t out, std::int64_t in, const float* x, const float* w, const float* bias,
                float* y);
// dx (rows, in) = dy (rows, out) . w (out, in), added to dx where `add`
void product_nn(std::int64_t rows, std::int64_t in, std::int64_t out, const float* dy, const float* w, float* dx,
                bool add);
// w (out, in) = beta * w + alpha * dy (rows, out)^T . x (rows, in)
void product_tn(std::int64_t out, std::int64_t in, std::int64_t rows, float alpha, const float* dy, const float* x,
                float beta, float* w);

}  // namespace fastfed
