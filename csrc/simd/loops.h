// Plain loops over floats that layers and sums share, each compiled once per SIMD level.
#pragma once

#include <cstdint>
#include <cstring>

namespace fastfed {

// Whether all magnitudes are moderate: far from the largest float, so that no difference of two can be infinite.
bool are_moderate(std::int64_t n, const float* x);
// The largest magnitude, and NaN if there is one.
float largest(std::int64_t n, const float* x);
// The sum over all numbers of their bits times a factor each, modulo 2^64.
std::uint64_t weighed_bits(std::int64_t n, const float* x, const std::uint32_t* factors);
// to = from; of nothing, both may be null, which memcpy forbids
inline void copy(std::int64_t n, const float* from, float* to) {
  if (n > 0) std::memcpy(to, from, std::size_t(n) * sizeof(float));
}
// to = from, while as much from `next` on is fetched into the cache: rows that lie anywhere, one after the other
void copy_ahead(std::int64_t n, const float* from, const float* next, float* to);
// to += from
void add_to(std::int64_t n, const float* from, float* to);
// to += scale * from
void add_scaled(std::int64_t n, float scale, const float* from, float* to);
// to += factors[0] * rows[0] + factors[1] * rows[1] + ..., every number from left to right: the bits of add_scaled row
// by row, with fewer ways through memory
void add_rows(std::int64_t n, std::int64_t count, const float* const* rows, const float* factors, float* to);
// sums (width,) = the sum over the rows of `from` (rows, width)
void sum_rows(std::int64_t rows, std::int64_t width, const float* from, float* sums);

}  // namespace fastfed
