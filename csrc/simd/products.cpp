// Which product runs where: our own tiles or a library's, as measured.
#include "simd/products.h"

#include <algorithm>
#include <cstring>

#include "simd/library.h"
#include "simd/simd.h"

namespace fastfed {

FF_BY_LEVEL(Products, products)

const Products& products() { return products_in_use(); }

namespace {

// Row-major c (m, n) = alpha * op(a) . op(b) + beta * c
void gemm(char op_a, char op_b, std::int64_t m, std::int64_t n, std::int64_t k, float alpha, const float* a,
          std::int64_t a_row, const float* b, std::int64_t b_row, float beta, float* c) {
  const auto stride = [](std::int64_t row) { return int(std::max<std::int64_t>(row, 1)); };  // of empty rows too
  const int im = int(m), in = int(n), ik = int(k), lda = stride(a_row), ldb = stride(b_row), ldc = stride(n);
  library_sgemm()(&op_b, &op_a, &in, &im, &ik, &alpha, b, &ldb, a, &lda, &beta, c, &ldc);
}

// The library packs both matrices before it multiplies: with few rows or few columns that costs more than the product.
constexpr std::int64_t kFewRows = 128, kFewColumns = 32;

bool takes_all() { return products().reach.everything || !library_sgemm(); }

bool takes_dots(std::int64_t rows, std::int64_t out, std::int64_t in) {
  if (takes_all()) return true;
  if (rows > kFewRows) return false;
  if (out <= kFewColumns) return true;
  const Reach& reach = products().reach;
  if (in < reach.dot_depth) return false;
  return out <= reach.dot_columns || (rows <= reach.dot_rows && in % reach.dot_multiple == 0);
}

}  // namespace

void product_nt(std::int64_t rows, std::int64_t out, std::int64_t in, const float* x, const float* w, const float* bias,
                float* y, Ahead* ahead) {
  if (takes_dots(rows, out, in)) return products().dot({rows, out, in, x, in, w, in, y, out, bias, 0, ahead});
  for (std::int64_t r = 0; bias && r < rows; ++r) std::memcpy(y + r * out, bias, std::size_t(out) * sizeof(float));
  gemm('N', 'T', rows, out, in, 1.0f, x, in, w, in, bias ? 1.0f : 0.0f, y);
}

void product_nn(std::int64_t rows, std::int64_t in, std::int64_t out, const float* dy, const float* w, float* dx,
                bool add) {
  if (takes_all() || out <= kFewColumns || rows <= products().reach.outer_rows)
    return products().outer({rows, in, out, 1, dy, out, 1, 0, w, in, 0, dx, in, 1.0f, add ? dx : nullptr, in});
  gemm('N', 'N', rows, in, out, 1.0f, dy, out, w, in, add ? 1.0f : 0.0f, dx);
}

void product_tn(std::int64_t out, std::int64_t in, std::int64_t rows, float alpha, const float* dy, const float* x,
                float beta, float* w, Ahead* ahead) {
  if (takes_all() || products().reach.updates)
    return products().update({out, in, rows, dy, out, x, in, w, in, alpha, beta != 0.0f, ahead});
  if (out <= kFewColumns && rows <= kFewRows)
    return products().outer({out, in, rows, 1, dy, 1, out, 0, x, in, 0, w, in, alpha, beta != 0.0f ? w : nullptr, in});
  gemm('T', 'N', out, in, rows, alpha, dy, out, x, in, beta, w);
}

}  // namespace fastfed
