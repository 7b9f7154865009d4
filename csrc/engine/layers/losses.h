// The losses at the end of a program: value and gradient of one batch, on one thread.
#pragma once

#include "engine/layers/layer.h"

namespace fastfed {

enum class Loss { kCrossEntropy, kBinaryCrossEntropy, kMse };

// The mean of all that is counted in a batch; summed over an example's numbers, the mean over examples; the mean over
// an example's numbers, summed over examples.
enum class Reduction { kMean, kOutputs, kBatch };

// A batch's loss: a sum, and what it is divided by; 0 if nothing is counted.
struct LossResult {
  double sum;
  Size divisor;
  double value() const { return divisor > 0 ? sum / double(divisor) : 0.0; }
};

// Each writes the gradient of the sum over `divisor`; a divisor of 0 stands for the number of what is counted.

// Logits (rows, classes); a row whose label is negative counts for nothing.
LossResult cross_entropy(Size rows, Size classes, const float* logits, const std::int32_t* labels, Size divisor,
                         float* dlogits);

// Of logits, against targets in [0, 1].
LossResult binary_cross_entropy_dense(Size n, const float* logits, const float* targets, Size divisor, float* dlogits);

// Logits (rows, tags); the targets of row r are 0, except those listed in row row_numbers[r] of `targets`.
LossResult binary_cross_entropy_sparse(Size rows, Size tags, const float* logits, const SparseRows& targets,
                                       const Size* row_numbers, Size divisor, float* dlogits);

LossResult mse(Size n, const float* outputs, const float* targets, Size divisor, float* doutputs);

}  // namespace fastfed
