// The transforms of Winograd's convolutions with 3x3 windows, at the SIMD level of the other inner loops. A tile is
// `outputs` x `outputs` pixels that come of side x side ones, side = outputs + 2. Transformed, each is side x side
// parts, in which the convolution is a product for every part: side^2 products for 9 * outputs^2.
#pragma once

#include <cstdint>

namespace fastfed {

// What becomes of numbers that are ready: to = alpha * number + (bias ? bias : 0), added to what is there if `add`.
struct Finish {
  float alpha = 1.0f;
  bool add = false;
  const float* bias = nullptr;
};

// All work on n numbers side by side, n a multiple of 16; `part` is from part to part. A row of `from` or `to` is one
// pixel, or one of the nine weights.
struct Winograd {
  std::int64_t outputs, side, parts;
  // side x side pixels, and the parts of them
  void (*input)(std::int64_t n, const float* const* from, float* to, std::int64_t part);
  // 3 x 3 weights, and the parts of them
  void (*weight)(std::int64_t n, const float* const* from, float* to, std::int64_t part);
  // the gradient of outputs x outputs pixels, and that of the parts they came of
  void (*slope)(std::int64_t n, const float* const* from, float* to, std::int64_t part);
  // the parts, and the outputs x outputs pixels that come of them
  void (*output)(std::int64_t n, const float* from, std::int64_t part, float* const* to, const Finish& finish);
  // the gradient of the weights' parts, and that of the 3 x 3 weights
  void (*weight_slope)(std::int64_t n, const float* from, std::int64_t part, float* const* to, const Finish& finish);
};

struct WinogradTiles {
  Winograd two, three;  // by their outputs
};

constexpr std::int64_t kMostParts = 25;

const WinogradTiles& winograd_tiles();

}  // namespace fastfed
