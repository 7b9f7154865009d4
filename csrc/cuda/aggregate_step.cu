// The weighted sum of deltas fused with the server step: the sum lives in registers only.
#include "cuda/server.h"

namespace fastfed {

template <class Variant, bool Wide, class E>
FF_DEVICE void aggregate_step(const ServerVectors& to, const Deltas<E>& deltas, const ServerNumbers<float>& n) {
  const Span span = summand_of_thread<Wide>(deltas.d);
  if (span.count <= 0) return;
  server_quad<Variant, Wide>(to, {span.at, Wide ? QUAD : 1}, weighted_sum_at<Wide>(deltas, span.at), n);
}

}  // namespace fastfed

#define MAKE(variant, Rule, keeps_m, of_delta, suffix, E, wide)                                            \
  FF_SUM_KERNEL(aggregate_step_##variant##_##suffix,                                                       \
                (fastfed::ServerVectors to, fastfed::Deltas<E> deltas, fastfed::ServerNumbers<float> n)) { \
    fastfed::aggregate_step<fastfed::ServerVariant<Rule, keeps_m, of_delta>, wide>(to, deltas, n);         \
  }
FF_SERVER_FORMULAS(FF_SERVER_VARIANTS)
#undef MAKE
