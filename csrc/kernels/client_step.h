// One local step of one client or of a batch: every pass that the rule and its options need, inside one call.
#pragma once

#include <cstdint>
#include <vector>

#include "simd/vector_loops.h"

namespace fastfed {

// Step sizes and covers under the names that kernels/table.py has for them.
#define FF_STEP_SIZES(DO)  \
  DO(given, kGiven)        \
  DO(delta_sgd, kDeltaSgd) \
  DO(sps, kSps)
#define FF_COVERS(DO) \
  DO(none, kNoCover)  \
  DO(II, kCoverII)    \
  DO(I, kCoverI)
#define FF_ENTRY(name, Number) Number,
enum StepSizeRule { FF_STEP_SIZES(FF_ENTRY) kStepSizes };
enum CoverForm { FF_COVERS(FF_ENTRY) kCovers };
#undef FF_ENTRY

// What all clients of a step share, in the order of kernels/table.py: ClientNumbers.
#define FF_CLIENT_NUMBERS(DO)    \
  DO(double, lr)                 \
  DO(double, beta1)              \
  DO(double, gain1)              \
  DO(double, beta2)              \
  DO(double, gain2)              \
  DO(double, eps)                \
  DO(double, root_eps)           \
  DO(std::int64_t, delay)        \
  DO(double, floor)              \
  DO(double, weight_decay)       \
  DO(double, prox)               \
  DO(double, clip) /* 0: none */ \
  DO(double, gamma)              \
  DO(double, delta)              \
  DO(double, theta)              \
  DO(bool, grow_first)           \
  DO(double, lr_eps)             \
  DO(double, c)                  \
  DO(double, f_star)             \
  DO(double, lr_max)             \
  DO(double, bias_from)
struct ClientNumbers {
#define FF_FIELD(Type, name) Type name;
  FF_CLIENT_NUMBERS(FF_FIELD)
#undef FF_FIELD
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
struct CoverMatrix {
  std::int64_t offset, rows, cols, row_offset, col_offset;
  std::vector<CoverAxis> row_axes, col_axes;
};
struct CoverLayout {
  std::vector<CoverMatrix> matrices;
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
