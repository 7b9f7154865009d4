// Plain loops over floats that layers and sums share, each compiled once per SIMD level.
#pragma once

#include <cstdint>

namespace fastfed {

// to += from
void add_to(std::int64_t n, const float* from, float* to);
// to += scale * from
void add_scaled(std::int64_t n, float scale, const float* from, float* to);
// sums (width,) = the sum over the rows of `from` (rows, width)
void sum_rows(std::int64_t rows, std::int64_t width, const float* from, float* sums);

}  // namespace fastfed
