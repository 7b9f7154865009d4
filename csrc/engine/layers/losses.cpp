// The losses: exponentials and logarithms by the vector, sums over float lanes into double.
#include "engine/layers/losses.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "curves.h"
#include "engine/layers/sums.h"
#include "simd/clones.h"

namespace fastfed {
namespace {

// Elements worked on at a time, where every element has a loss of its own.
constexpr Size kChunk = 512;

float share_of(Size count) { return float(1.0 / double(count)); }

// ---- cross entropy -------------------------------------------------------------------------------------------------

// Numbers of a group of rows that is worked on at a time: it stays in the nearest cache from pass to pass, and a
// thousand short rows cost what a few long ones do.
constexpr Size kAtOnce = 4096;

constexpr Size kFewClasses = 24;

// Every row with its largest number taken off.
FF_CLONES void take_tops_off(Size rows, Size classes, const float* __restrict logits, float* __restrict shifted) {
  for (Size r = 0; r < rows; ++r, logits += classes, shifted += classes) {
    float top = -std::numeric_limits<float>::infinity();
    if (classes <= kFewClasses) {  // one after the other: several rows are on their way at once
      for (Size c = 0; c < classes; ++c) top = top > logits[c] ? top : logits[c];
    } else {
#pragma omp simd reduction(max : top)
      for (Size c = 0; c < classes; ++c) top = top > logits[c] ? top : logits[c];
    }
    for (Size c = 0; c < classes; ++c) shifted[c] = logits[c] - top;
  }
}

FF_CLONES void exponentiate(Size n, float* a) {
  for (Size i = 0; i < n; ++i) a[i] = exp_of(a[i]);
}

FF_CLONES void multiply(Size n, float factor, float* a) {
  for (Size i = 0; i < n; ++i) a[i] *= factor;
}

FF_CLONES double total_of(Size n, const float* a) {
  if (n >= kSumRun) return sum_of(n, [=](Size i) { return a[i]; });
  double sum = 0.0;
  for (Size i = 0; i < n; ++i) sum += double(a[i]);
  return sum;
}

// The sum of the losses of some rows, and their gradients times `share`.
double block_loss(Size rows, Size classes, const float* logits, const std::int32_t* labels, float share,
                  float* dlogits) {
  double loss = 0.0;
  take_tops_off(rows, classes, logits, dlogits);
  for (Size r = 0; r < rows; ++r)
    if (labels[r] >= 0) loss -= double(dlogits[r * classes + labels[r]]);
  exponentiate(rows * classes, dlogits);
  for (Size r = 0; r < rows; ++r) {
    float* gradient = dlogits + r * classes;
    if (labels[r] < 0) {
      std::fill_n(gradient, classes, 0.0f);
      continue;
    }
    const double sum = total_of(classes, gradient);
    multiply(classes, float(double(share) / sum), gradient);
    gradient[labels[r]] -= share;
    loss += std::log(sum);
  }
  return loss;
}

// ---- binary cross entropy ------------------------------------------------------------------------------------------

// d: the targets, and then the gradient times `share`. Returns the sum of the losses.
FF_CLONES double binary_losses(Size n, const float* __restrict logits, float share, float* __restrict d) {
  float loss[kChunk];
  for (Size i = 0; i < n; ++i) {
    const float x = logits[i], t = d[i], positive = x > 0.0f ? x : 0.0f;
    loss[i] = (positive - x * t) + log1p_of(exp_of(-magnitude_of(x)));
    d[i] = (logistic_of(x).value - t) * share;
  }
  return sum_of(n, [&](Size i) { return loss[i]; });
}

// dlogits: the targets, and then the gradient.
LossResult binary_in_place(Size n, const float* logits, Size divisor, float* dlogits) {
  LossResult result{0.0, divisor > 0 ? divisor : n};
  for (Size begin = 0; begin < n; begin += kChunk)
    result.sum += binary_losses(std::min(kChunk, n - begin), logits + begin, share_of(result.divisor), dlogits + begin);
  return result;
}

// ---- mean squared error --------------------------------------------------------------------------------------------

FF_CLONES double squared_errors(Size n, const float* __restrict outputs, const float* __restrict targets, float share,
                                float* __restrict d) {
  for (Size i = 0; i < n; ++i) d[i] = (outputs[i] - targets[i]) * share;
  return sum_of(n, [=](Size i) { return (outputs[i] - targets[i]) * (outputs[i] - targets[i]); });
}

}  // namespace

LossResult cross_entropy(Size rows, Size classes, const float* logits, const std::int32_t* labels, Size divisor,
                         float* dlogits) {
  LossResult result{0.0, divisor};
  if (divisor == 0)
    result.divisor = std::count_if(labels, labels + rows, [](std::int32_t label) { return label >= 0; });
  const Size step = std::max<Size>(1, kAtOnce / classes);
  for (Size r = 0; r < rows; r += step)
    result.sum += block_loss(std::min(step, rows - r), classes, logits + r * classes, labels + r,
                             share_of(result.divisor), dlogits + r * classes);
  return result;
}

LossResult binary_cross_entropy_dense(Size n, const float* logits, const float* targets, Size divisor, float* dlogits) {
  std::memcpy(dlogits, targets, std::size_t(n) * sizeof(float));
  return binary_in_place(n, logits, divisor, dlogits);
}

LossResult binary_cross_entropy_sparse(Size rows, Size tags, const float* logits, const SparseRows& targets,
                                       const Size* row_numbers, Size divisor, float* dlogits) {
  std::fill_n(dlogits, rows * tags, 0.0f);
  for (Size r = 0; r < rows; ++r)
    for (Size i = targets.starts[row_numbers[r]]; i < targets.starts[row_numbers[r] + 1]; ++i)
      dlogits[r * tags + targets.columns[i]] += targets.values[i];
  return binary_in_place(rows * tags, logits, divisor, dlogits);
}

LossResult mse(Size n, const float* outputs, const float* targets, Size divisor, float* doutputs) {
  if (divisor == 0) divisor = n;
  return {squared_errors(n, outputs, targets, float(2.0 / double(divisor)), doutputs), divisor};
}

}  // namespace fastfed
