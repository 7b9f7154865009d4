// Transposition of small matrices on one thread.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "rules.h"  // FF_FN

namespace fastfed {

typedef float FourFloats __attribute__((vector_size(16)));

FF_FN FourFloats load_four(const float* from) {
  FourFloats v;
  std::memcpy(&v, from, sizeof v);
  return v;
}

template <bool Add> FF_FN void store_four(FourFloats v, float* to) {
  if (Add) v += load_four(to);
  std::memcpy(to, &v, sizeof v);
}

// a0 b0 a1 b1, and the same of the upper halves: one instruction each.
FF_FN FourFloats mix_lower(FourFloats a, FourFloats b) { return FourFloats{a[0], b[0], a[1], b[1]}; }
FF_FN FourFloats mix_upper(FourFloats a, FourFloats b) { return FourFloats{a[2], b[2], a[3], b[3]}; }

template <bool Add> FF_FN void transpose_4x4(const float* from, std::int64_t from_row, float* to, std::int64_t to_row) {
  const FourFloats a = load_four(from), b = load_four(from + from_row);
  const FourFloats c = load_four(from + 2 * from_row), d = load_four(from + 3 * from_row);
  const FourFloats ac0 = mix_lower(a, c), ac1 = mix_upper(a, c), bd0 = mix_lower(b, d), bd1 = mix_upper(b, d);
  store_four<Add>(mix_lower(ac0, bd0), to);
  store_four<Add>(mix_upper(ac0, bd0), to + to_row);
  store_four<Add>(mix_lower(ac1, bd1), to + 2 * to_row);
  store_four<Add>(mix_upper(ac1, bd1), to + 3 * to_row);
}

// A (rows, cols) tile of a larger matrix.
template <bool Add>
FF_FN void transpose_tile(std::int64_t rows, std::int64_t cols, const float* from, std::int64_t from_row, float* to,
                          std::int64_t to_row) {
  const std::int64_t whole_rows = rows - rows % 4, whole_cols = cols - cols % 4;
  for (std::int64_t r = 0; r < whole_rows; r += 4)
    for (std::int64_t c = 0; c < whole_cols; c += 4)
      transpose_4x4<Add>(from + r * from_row + c, from_row, to + c * to_row + r, to_row);
  for (std::int64_t r = 0; r < rows; ++r)
    for (std::int64_t c = r < whole_rows ? whole_cols : 0; c < cols; ++c)
      to[c * to_row + r] = Add ? to[c * to_row + r] + from[r * from_row + c] : from[r * from_row + c];
}

// to (cols, rows), whose rows lie to_row apart, = from (rows, cols) transposed, or that added to it. In tiles of one
// cache line: many lines of one matrix at a power of two from each other would push each other out.
template <bool Add>
FF_FN void transpose(std::int64_t rows, std::int64_t cols, const float* from, float* to, std::int64_t to_row) {
  constexpr std::int64_t kTile = 16;
  for (std::int64_t r = 0; r < rows; r += kTile)
    for (std::int64_t c = 0; c < cols; c += kTile)
      transpose_tile<Add>(std::min(kTile, rows - r), std::min(kTile, cols - c), from + r * cols + c, cols,
                          to + c * to_row + r, to_row);
}

}  // namespace fastfed
