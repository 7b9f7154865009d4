// A server rule on one quad, and the list of its variants: shared by server_step.cu and aggregate_step.cu.
#pragma once

#include "cuda/deltas.h"

namespace fastfed {

struct ServerVectors {
  float *x, *m, *v, *vmax;  // null where the rule keeps none
};

// Without m (beta1 = 0: it would equal the delta) OfDelta makes no difference.
template <class Rule_, bool KeepsM, bool OfDelta> struct ServerVariant {
  using Rule = Rule_;
  static constexpr bool has_m = Rule::has_m && KeepsM, of_delta = OfDelta;
};

template <class Variant, bool Wide>
FF_DEVICE void server_quad(const ServerVectors& to, const Span& span, const Quad& delta,
                           const ServerNumbers<float>& n) {
  using Rule = typename Variant::Rule;
  Quad x = load<Wide>(to.x, span.at, span.count), m = {}, v = {}, vmax = {};
  if constexpr (Variant::has_m) m = load<Wide>(to.m, span.at, span.count);
  if constexpr (Rule::has_v) v = load<Wide>(to.v, span.at, span.count);
  if constexpr (Rule::has_vmax) vmax = load<Wide>(to.vmax, span.at, span.count);
  FF_UNROLL for (int k = 0; k < QUAD; ++k) {
    Rule::template step<Variant::of_delta>(x.e[k], delta.e[k], m.e[k], v.e[k], vmax.e[k], n);
  }
  store<Wide>(to.x, span.at, span.count, x);
  if constexpr (Variant::has_m) store<Wide>(to.m, span.at, span.count, m);
  if constexpr (Rule::has_v) store<Wide>(to.v, span.at, span.count, v);
  if constexpr (Rule::has_vmax) store<Wide>(to.vmax, span.at, span.count, vmax);
}

}  // namespace fastfed

// For FF_SERVER_FORMULAS: the file's MAKE(name, rule, keeps m, of delta, ...) for every variant of a rule, delta dtype
// and width. Every rule has all three, so that the list need not say what a rule keeps.
#define FF_SERVER_VARIANTS(rule, Rule)                                \
  FF_FOR_EACH_DELTA(MAKE, rule, fastfed::Rule, true, false)           \
  FF_FOR_EACH_DELTA(MAKE, rule##_of_delta, fastfed::Rule, true, true) \
  FF_FOR_EACH_DELTA(MAKE, rule##_without_m, fastfed::Rule, false, true)
