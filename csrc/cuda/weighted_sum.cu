// The weighted sum of a batch of deltas, clients in their order, every delta read once.
#include "cuda/deltas.h"

namespace fastfed {

template <bool Wide, class E> FF_DEVICE void weighted_sum(const Deltas<E>& deltas, float* out) {
  const Span span = summand_of_thread<Wide>(deltas.d);
  if (span.count > 0) store<Wide>(out, span.at, Wide ? QUAD : 1, weighted_sum_at<Wide>(deltas, span.at));
}

}  // namespace fastfed

#define MAKE(stem, suffix, E, wide) \
  FF_SUM_KERNEL(stem##_##suffix, (fastfed::Deltas<E> deltas, float* out)) { fastfed::weighted_sum<wide>(deltas, out); }
FF_FOR_EACH_DELTA(MAKE, weighted_sum)
#undef MAKE
