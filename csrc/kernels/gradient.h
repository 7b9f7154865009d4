// The gradient that a client rule sees: as given, or corrected span by span in a scratch buffer that stays in cache.
#pragma once

#include <algorithm>

#include "kernels/client_step.h"
#include "kernels/parallel.h"
#include "simd/simd.h"

namespace fastfed {

// What the passes know of one client in one step (kernels/passes.py: the coefficients).
struct Coefficients {
  bool active = true, refresh = true;
  double scale = 1, keep = 1, step = 0, root_scale = 1, bias1 = 1;
};

template <class T> DirectionNumbers<T> direction_numbers(const ClientNumbers& n, const Coefficients& k) {
  return {T(n.beta1), T(n.gain1), T(n.beta2), T(n.gain2), T(n.eps), T(n.root_eps), T(k.root_scale), T(k.keep)};
}

template <class T> class Gradient {
 public:
  explicit Gradient(const ClientStep<T>& step) : vec_(step.vectors), numbers_(step.numbers) {}

  bool corrected(const Coefficients& k) const {
    return vec_.anchor || vec_.correction || numbers_.weight_decay != 0 || k.scale != 1;
  }

  // The gradient of n <= kSpan elements from `begin`; scratch holds kSpan elements.
  const T* span(std::int64_t client, const Coefficients& k, std::int64_t begin, std::int64_t n, T* scratch) const {
    const std::int64_t at = client * vec_.d + begin;
    if (!corrected(k)) return vec_.grad + at;
    vector_loops<T>().correct(n, scratch, vec_.grad + at, vec_.x + at, row(vec_.anchor, vec_.shared_anchor, at, begin),
                              row(vec_.correction, vec_.shared_correction, at, begin), T(numbers_.weight_decay),
                              T(numbers_.prox), T(k.scale));
    return scratch;
  }

  // Calls work(offset, n, gradient) over [begin, begin + n): in runs of `most` if the gradient is as given, else by
  // spans.
  template <class Work>
  void for_spans(std::int64_t client, const Coefficients& k, std::int64_t begin, std::int64_t n, std::int64_t most,
                 Work work) const {
    alignas(64) T scratch[kSpan];
    const std::int64_t span_size = corrected(k) ? kSpan : most;
    for (std::int64_t i = begin; i < begin + n; i += span_size) {
      const std::int64_t length = std::min(span_size, begin + n - i);
      work(i, length, span(client, k, i, length, scratch));
    }
  }

 private:
  static const T* row(const T* vector, bool shared, std::int64_t at, std::int64_t begin) {
    return vector ? vector + (shared ? begin : at) : nullptr;
  }

  const ClientVectors<T>& vec_;
  const ClientNumbers& numbers_;
};

}  // namespace fastfed
