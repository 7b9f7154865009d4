// The fixed lanes of sums of squares: element i goes to lane i % kSquareLanes, and lanes are folded in a fixed tree.
// One place, so that a norm has the same bits whoever takes it, at every SIMD level.
#pragma once

#include "rules.h"  // FF_FN

namespace fastfed {

constexpr int kSquareLanes = 16;

FF_FN double folded(const double (&lanes)[kSquareLanes]) {
  double sums[kSquareLanes];
  for (int i = 0; i < kSquareLanes; ++i) sums[i] = lanes[i];
  for (int half = kSquareLanes / 2; half > 0; half /= 2)
    for (int i = 0; i < half; ++i) sums[i] += sums[i + half];
  return sums[0];
}

}  // namespace fastfed
