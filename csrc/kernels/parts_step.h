// Steps along gradients, of a model in parts: every part (a parameter of a module) has its own vectors and its own
// gradient, wherever they lie, and one call goes over all of them.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/client_step.h"
#include "kernels/server_step.h"

namespace fastfed {

// The gradient that a rule sees of g: scale * (g + weight_decay * x).
struct Sight {
  double scale = 1, weight_decay = 0;

  bool is_plain() const { return scale == 1 && weight_decay == 0; }
};

// A server's formula along what it sees of every gradient, where other steps have the aggregated delta.
template <class T> struct GradientPart {
  ServerVectors<T> vectors;
  const T* grad;
};
template <class T>
void gradient_parts(ServerFormula formula, const std::vector<GradientPart<T>>& parts, const Sight& sight, bool of_delta,
                    const ServerNumbers<T>& numbers, int threads);

// A client's direction over SM3's covers, one of each part. `step` and `root_scale` have their bias corrections.
template <class T> struct CoveredPart {
  std::int64_t d;
  T* x;
  const T* grad;
  T* m;  // null where the rule does without
  T* mu;
  CoverLayout layout;
};
template <class T>
void covered_parts(DirectionFormula formula, CoverForm cover, const std::vector<CoveredPart<T>>& parts,
                   const Sight& sight, const ClientNumbers& numbers, double step, double root_scale, int threads);

// Moves of x down the gradient by a step size that all parts share.
template <class T> struct MovedPart {
  std::int64_t d;
  T* x;
  const T* grad;
  T* grad_prev;  // may be null
};
// The sum of squares of the gradients of all parts; where they have a grad_prev, of what they differ from it by, and it
// becomes the gradient.
template <class T> double squares_of_parts(const std::vector<MovedPart<T>>& parts, const Sight& sight, int threads);
// Moves x. Returns the sum of squares of what it really moved by if `measured`.
template <class T>
double move_parts(const std::vector<MovedPart<T>>& parts, const Sight& sight, double step, bool measured, int threads);

}  // namespace fastfed
