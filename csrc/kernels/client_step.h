// One local step of one client or of a batch: every pass that the rule and its options need, inside one call.
#pragma once

#include <cstdint>
#include <vector>

#include "simd/blocks.h"

namespace fastfed {

enum StepSizeRule { kGiven, kDeltaSgd, kSps };
enum CoverForm { kNoCover, kCoverII, kCoverI };

// What all clients of a step share (kernels/table.py: ClientNumbers).
struct ClientNumbers {
  double lr, beta1, gain1, beta2, gain2, eps, root_eps;
  std::int64_t delay;
  double floor, weight_decay, prox, clip;  // clip 0: none
  double gamma, delta, theta;
  bool grow_first;
  double lr_eps, c, f_star, lr_max;
};

// Rows of d elements, one per client. Pointers are null where the rule or the call does without; a shared anchor or
// correction has one row for all.
template <class T> struct ClientVectors {
  std::int64_t clients, d, mu_size;
  T* x;
  const T* grad;
  T *m, *v, *nu, *mu, *grad_prev;
  const T* previous_grad;
  const T* anchor;
  const T* correction;
  bool shared_anchor, shared_correction;
};

// One number per client; null where absent.
struct ClientScalars {
  std::int64_t *step, *refreshes;
  double *lr, *theta, *move;  // state
  const double *given_lr, *loss;
  const std::int64_t* epoch;
  const bool* finished;
};

// One packed tensor as a matrix (kernels/covers.py says why that covers every rank).
struct CoverAxis {
  std::int64_t mu_offset, size, stride;
};
struct CoverBlock {
  std::int64_t offset, rows, cols, row_offset, col_offset;
  std::vector<CoverAxis> row_axes, col_axes;
};
struct CoverLayout {
  std::vector<CoverBlock> blocks;
  std::int64_t row_size = 0, col_size = 0, mu_size = 0;
};

// Reads the int64 layout that an SM3 state carries; throws std::invalid_argument if it does not fit d.
CoverLayout read_layout(const std::int64_t* numbers, std::int64_t count, std::int64_t d);

template <class T> struct ClientStep {
  DirectionFormula formula;
  CoverForm cover;
  StepSizeRule step_size;
  ClientNumbers numbers;
  ClientVectors<T> vectors;
  ClientScalars scalars;
  const CoverLayout* layout;
  int threads;
};

template <class T> void client_step(const ClientStep<T>& step);

}  // namespace fastfed
