// Matrix products at the sizes of one client's batch, which tuned libraries are not made for: a few rows against a
// weight matrix, and windows of an image against a kernel without copying them out first (im2col).
#pragma once

#include <cstdint>

#include "simd/ahead.h"

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

// c[i, j] = alpha * sum over p < steps of a[p * a_step + i] * b[p * b_step + j], added to c where `add`: a change of a
// large matrix by a few pairs of vectors.
struct Update {
  std::int64_t rows, cols, steps;
  const float* a;
  std::int64_t a_step;
  const float* b;
  std::int64_t b_step;
  float* c;
  std::int64_t c_row;
  float alpha;
  bool add;
  Ahead* ahead = nullptr;  // what is fetched in the meantime
};

// c[i, j] = sum over k of a[i * a_row + k] * b[j * b_row + k] + (plus ? plus[i * plus_row + j] : 0)
struct Dot {
  std::int64_t rows, cols, depth;
  const float* a;
  std::int64_t a_row;
  const float* b;
  std::int64_t b_row;
  float* c;
  std::int64_t c_row;
  const float* plus;
  std::int64_t plus_row;
  Ahead* ahead = nullptr;
};

// Where our own products are better than the library's, beyond the narrow matrices that it is not made for.
struct Reach {
  bool everything = false;        // all products;
  std::int64_t dot_depth = 512;   // dot products at least as long: they pay at their end, where lanes are added up;
  std::int64_t dot_columns = 0;   // of these, all with at most as many columns,
  std::int64_t dot_rows = 1024;   // and the others if they have at most as many rows
  std::int64_t dot_multiple = 1;  // and such a length: rows of b that begin anywhere in a line of the cache are slow
  std::int64_t outer_rows = 0;    // outer products of at most as many rows
  bool updates = true;            // updates
};

// Room for the sums of a tile at any level.
constexpr std::int64_t kTileNumbers = 24 * 16;

struct Products {
  void (*outer)(const Outer&);
  void (*update)(const Update&);
  void (*dot)(const Dot&);
  // As many multiply-adds as fit, `rounds` times, on `numbers` (kTileNumbers,) and nothing else; how many operations.
  // No product can be quicker: benchmarks measure this.
  std::int64_t (*spin)(std::int64_t rounds, float* numbers);
  Reach reach;
};

const Products& products();  // at the SIMD level of the other inner loops

// ---- dense layers: row-major matrices, one thread ------------------------------------------------------------------

// What is wanted `ahead` comes while our own tiles multiply; the library's do not ask for it.

// y (rows, out) = x (rows, in) . w (out, in)^T + bias (out,) or 0
void product_nt(std::int64_t rows, std::int64_t out, std::int64_t in, const float* x, const float* w, const float* bias,
                float* y, Ahead* ahead = nullptr);
// dx (rows, in) = dy (rows, out) . w (out, in), added to dx where `add`
void product_nn(std::int64_t rows, std::int64_t in, std::int64_t out, const float* dy, const float* w, float* dx,
                bool add);
// w (out, in) = beta * w + alpha * dy (rows, out)^T . x (rows, in)
void product_tn(std::int64_t out, std::int64_t in, std::int64_t rows, float alpha, const float* dy, const float* x,
                float beta, float* w, Ahead* ahead = nullptr);

}  // namespace fastfed
