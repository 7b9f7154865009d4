// Loops for the vectoriser.
#include "simd/loops.h"

#include "philox.h"  // bits_of, float_of
#include "simd/clones.h"

namespace fastfed {

FF_CLONES bool are_moderate(std::int64_t n, const float* x) {
  constexpr float kLimit = 1e38f;
  int beyond = 0;
  for (std::int64_t i = 0; i < n; ++i) beyond |= !(x[i] < kLimit && x[i] > -kLimit);  // so is NaN
  return beyond == 0;
}

FF_CLONES float largest(std::int64_t n, const float* x) {
  Word top = 0;  // as bits, magnitudes are in order, and NaN is above infinity
  for (std::int64_t i = 0; i < n; ++i) {
    const Word bits = bits_of(x[i]) & 0x7FFFFFFFu;
    top = bits > top ? bits : top;
  }
  return float_of(top);
}

FF_CLONES std::uint64_t weighed_bits(std::int64_t n, const float* x, const std::uint32_t* factors) {
  std::uint64_t sum = 0;
  for (std::int64_t i = 0; i < n; ++i) sum += std::uint64_t(bits_of(x[i])) * factors[i];
  return sum;
}

FF_CLONES void copy_ahead(std::int64_t n, const float* __restrict from, const float* next, float* __restrict to) {
  constexpr std::int64_t kLine = 16;
  std::int64_t i = 0;
  for (; i + kLine <= n; i += kLine) {
    __builtin_prefetch(next + i);
    for (std::int64_t l = i; l < i + kLine; ++l) to[l] = from[l];
  }
  for (; i < n; ++i) to[i] = from[i];
}

FF_CLONES void add_to(std::int64_t n, const float* __restrict from, float* __restrict to) {
  for (std::int64_t i = 0; i < n; ++i) to[i] += from[i];
}

FF_CLONES void add_scaled(std::int64_t n, float scale, const float* __restrict from, float* __restrict to) {
  for (std::int64_t i = 0; i < n; ++i) to[i] += scale * from[i];
}

namespace {

FF_CLONES void add_four(std::int64_t n, const float* const* rows, const float* factors, float* __restrict to) {
  const float* __restrict a = rows[0], * __restrict b = rows[1], * __restrict c = rows[2], * __restrict d = rows[3];
  const float fa = factors[0], fb = factors[1], fc = factors[2], fd = factors[3];
  for (std::int64_t i = 0; i < n; ++i) to[i] = (((to[i] + fa * a[i]) + fb * b[i]) + fc * c[i]) + fd * d[i];
}

FF_CLONES void add_two(std::int64_t n, const float* const* rows, const float* factors, float* __restrict to) {
  const float* __restrict a = rows[0], * __restrict b = rows[1];
  const float fa = factors[0], fb = factors[1];
  for (std::int64_t i = 0; i < n; ++i) to[i] = (to[i] + fa * a[i]) + fb * b[i];
}

}  // namespace

void add_rows(std::int64_t n, std::int64_t count, const float* const* rows, const float* factors, float* to) {
  std::int64_t r = 0;
  for (; r + 4 <= count; r += 4) add_four(n, rows + r, factors + r, to);
  for (; r + 2 <= count; r += 2) add_two(n, rows + r, factors + r, to);
  if (r < count) add_scaled(n, factors[r], rows[r], to);
}

FF_CLONES void sum_rows(std::int64_t rows, std::int64_t width, const float* __restrict from, float* __restrict sums) {
  for (std::int64_t j = 0; j < width; ++j) sums[j] = 0.0f;
  for (std::int64_t r = 0; r < rows; ++r)
    for (std::int64_t j = 0; j < width; ++j) sums[j] += from[r * width + j];
}

}  // namespace fastfed
