// The inner loops of max pooling, channels last, at the SIMD level of the other inner loops.
#pragma once

#include <cstdint>

namespace fastfed {

// The pixels [begin, end) of one axis under a window; `full` counts those of the border too.
struct Window {
  std::int64_t begin, end, full;
};

// Where the windows of a pooling lie, one per output row (down) and one per output column (across), over images
// (.., in_width, channels).
struct Grid {
  const Window *down, *across;
  std::int64_t out_height, out_width, in_width, channels;
};

struct Pools {
  // best = the largest of every window, which = its number in the window; the first of equals, and NaN before all
  void (*largest)(const Grid&, const float* image, float* best, float* which);
  // dx += dy at the pixel that was the largest of its window
  void (*give_to_largest)(const Grid&, const float* dy, const float* which, float* dx);
};

const Pools& pools();

}  // namespace fastfed
