// The losses at the end of a program: value and gradient of one batch, on one thread.
#pragma once

#include "engine/layers/layer.h"

namespace fastfed {

enum class Loss { kCrossEntropy, kBinaryCrossEntropy, kMse };

// A batch's loss is the mean of what is counted; 0 if nothing is.
struct LossResult {
  double sum;
  Size count;
  double mean() const { return count > 0 ? sum / double(count) : 0.0; }
};

// Each writes the gradient of the mean.

// Logits (rows, classes); a row whose label is negative counts for nothing.
LossResult cross_entropy(Size rows, Size classes, const float* logits, const std::int32_t* labels, float* dlogits);

// Of logits, against targets in [0, 1].
LossResult binary_cross_entropy_dense(Size n, const float* logits, const float* targets, float* dlogits);

// Logits (rows, tags); the targets of row r are 0, except those listed in row row_numbers[r] of `targets`.
LossResult binary_cross_entropy_sparse(Size rows, Size tags, const float* logits, const SparseRows& targets,
                                       const Size* row_numbers, float* dlogits);

LossResult mse(Size n, const float* outputs, const float* targets, float* doutputs);

}  // namespace fastfed
