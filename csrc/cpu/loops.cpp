// Loops for the vectoriser.
#include "cpu/loops.h"

#include "cpu/clones.h"

namespace fastfed {

FF_CLONES void add_to(std::int64_t n, const float* __restrict from, float* __restrict to) {
  for (std::int64_t i = 0; i < n; ++i) to[i] += from[i];
}

FF_CLONES void add_scaled(std::int64_t n, float scale, const float* __restrict from, float* __restrict to) {
  for (std::int64_t i = 0; i < n; ++i) to[i] += scale * from[i];
}

FF_CLONES void sum_rows(std::int64_t rows, std::int64_t width, const float* __restrict from, float* __restrict sums) {
  for (std::int64_t j = 0; j < width; ++j) sums[j] = 0.0f;
  for (std::int64_t r = 0; r < rows; ++r)
    for (std::int64_t j = 0; j < width; ++j) sums[j] += from[r * width + j];
}

}  // namespace fastfed
