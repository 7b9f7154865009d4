// Sums in a fixed order that SIMD can follow: the same bits at every level, and short chains, so that float will do.
#pragma once

#include <cstdint>

#include "rules.h"  // FF_FN

namespace fastfed {

constexpr int kSumLanes = 16;
constexpr std::int64_t kSumRun = 512;      // elements that go through the float lanes before they are folded
constexpr std::int64_t kSumRows = 4 * 16;  // rows that go through the float partial sums before they are added up

// The sum of term(i) over i < n; within a run, element i goes to lane i % kSumLanes.
template <class Term> FF_FN double sum_of(std::int64_t n, Term term) {
  double total = 0.0;
  for (std::int64_t start = 0; start < n; start += kSumRun) {
    const std::int64_t end = n - start < kSumRun ? n : start + kSumRun;
    float lane[kSumLanes] = {};
    std::int64_t i = start;
    for (; i + kSumLanes <= end; i += kSumLanes) {
#pragma GCC unroll 16
      for (int l = 0; l < kSumLanes; ++l) lane[l] += term(i + l);
    }
    for (int l = 0; i + l < end; ++l) lane[l] += term(i + l);
    for (int half = kSumLanes / 2; half > 0; half /= 2)
      for (int l = 0; l < half; ++l) lane[l] += lane[l + half];
    total += double(lane[0]);
  }
  return total;
}

// sums[c] = the sum of term(r, c) over r < rows; partial is scratch for `cols` numbers.
template <class Term>
FF_FN void sum_columns_of(std::int64_t rows, std::int64_t cols, float* __restrict partial, float* __restrict sums,
                          Term term) {
  for (std::int64_t c = 0; c < cols; ++c) sums[c] = 0.0f;
  for (std::int64_t start = 0; start < rows; start += kSumRows) {
    const std::int64_t end = rows - start < kSumRows ? rows : start + kSumRows;
    for (std::int64_t c = 0; c < cols; ++c) partial[c] = 0.0f;
    std::int64_t r = start;
    // Four rows at once: the partial sums go through memory a quarter as often.
    for (; r + 4 <= end; r += 4)
      for (std::int64_t c = 0; c < cols; ++c)
        partial[c] += (term(r, c) + term(r + 1, c)) + (term(r + 2, c) + term(r + 3, c));
    for (; r < end; ++r)
      for (std::int64_t c = 0; c < cols; ++c) partial[c] += term(r, c);
    for (std::int64_t c = 0; c < cols; ++c) sums[c] += partial[c];
  }
}

}  // namespace fastfed
