// The weighted sum of a batch of deltas, clients in their order, every delta read once.
#include "cuda/deltas.h"

namespace fastfed {

template <bool Wide, class E> FF_DEVICE void weighted_sum(const Deltas<E>& deltas, float* out) {
  const Span span = quad_of_thread(deltas.d);
  if (span.count > 0) store<Wide>(out, span.at, span.count, weighted_quad<Wide>(deltas, span));
}

}  // namespace fastfed

#define MAKE(stem, suffix, E, wide) \
  FF_KERNEL(stem##_##suffix, (fastfed::Deltas<E> deltas, float* out)) { fastfed::weighted_sum<wide>(deltas, out); }
FF_FOR_EACH_DELTA(MAKE, weighted_sum)
#undef MAKE
