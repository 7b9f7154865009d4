// One server step along an aggregated delta: every vector of the rule is read once and written once.
#include "cuda/server.h"

namespace fastfed {

template <class Variant, bool Wide, class E>
FF_DEVICE void server_step(const ServerVectors& to, const E* delta, long long d, const ServerNumbers<float>& n) {
  const Span span = quad_of_thread(d);
  if (span.count <= 0) return;
  server_quad<Variant, Wide>(to, span, load<Wide>(delta, span.at, span.count), n);
}

}  // namespace fastfed

#define MAKE(variant, Rule, keeps_m, of_delta, suffix, E, wide)                                          \
  FF_KERNEL(server_step_##variant##_##suffix,                                                            \
            (fastfed::ServerVectors to, const E* delta, long long d, fastfed::ServerNumbers<float> n)) { \
    fastfed::server_step<fastfed::ServerVariant<Rule, keeps_m, of_delta>, wide>(to, delta, d, n);        \
  }
FF_SERVER_FORMULAS(FF_SERVER_VARIANTS)
#undef MAKE
