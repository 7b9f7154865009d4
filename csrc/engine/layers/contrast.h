// MOON's term of a batch's loss (fastfed/train/contrast.py has the formula), on one thread.
#pragma once

#include "engine/layers/layer.h"

namespace fastfed {

// The features (n, width) of a batch: under the local model, the one it started from, and the client's previous one.
struct Features {
  Size n, width;
  const float *local, *start, *previous;
};

// The mean of the term over the batch, times mu; its gradient is added to that of the local features, (n, width).
double contrast(const Features& features, double mu, double temperature, float* dlocal);

}  // namespace fastfed
