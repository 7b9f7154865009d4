// One step of a client rule without cover, and the sums of squares before it. Clients that have finished cost nothing.
#include "cuda/client.h"

namespace fastfed {

// Moves x from `old` and stores whatever the rule keeps; returns the new x, and in g the gradient it followed.
template <class Direction, bool Wide>
FF_DEVICE Quad update_quad(const ClientVectors& to, const ClientNumbers& n, const Coefficients& c, const Place& p,
                           const Quad& old, Quad& g) {
  g = gradient_quad<Wide>(to, n, p, old, c.scale);
  Moments moments = load_moments<Direction, Wide>(to, p);
  return step_quad<Direction, Wide>(to, n, c, p, old, g, moments);
}

template <class Direction, bool Wide> FF_DEVICE void update(const ClientVectors& to, const ClientNumbers& n) {
  const long long client = client_of_block();
  const Span span = quad_of_thread(to.d);
  if (client >= to.clients || span.count <= 0) return;
  const Coefficients c = to.coefficients[client];
  if (c.active == 0.0f) return;
  const Place place = {client, span.at, span.count};
  Quad g;
  update_quad<Direction, Wide>(to, n, c, place, load<Wide>(to.x, index_of(place, to.d), place.count), g);
}

// ---- passes with a sum of squares: Measure::quad gives what is squared ---------------------------------------------

template <class Measure, bool Wide>
FF_DEVICE void squares(const ClientVectors& in, const ClientNumbers& n, double* partials) {
  const long long client = client_of_block();
  if (client >= in.clients) return;
  const Coefficients c = in.coefficients[client];
  double sum = 0.0;
  if (c.active != 0.0f) {
    FF_UNROLL_BY(1) for (int i = 0; i < SUM_QUADS; ++i) {
      const Span span = sum_quad_of_thread(i, in.d);
      if (span.count <= 0) break;
      sum += sum_of_squares(Measure::template quad<Wide>(in, n, c, {client, span.at, span.count}), span.count);
    }
  }
  keep_partial(partials, client, sum);
}

struct GradientMeasure {
  template <bool Wide>
  FF_DEVICE Quad quad(const ClientVectors& in, const ClientNumbers& n, const Coefficients& c, const Place& p) {
    return gradient_quad<Wide>(in, n, p, load_or_zero<Wide>(in.x, index_of(p, in.d), p.count), c.scale);
  }
};

struct ChangeMeasure {
  template <bool Wide>
  FF_DEVICE Quad quad(const ClientVectors& in, const ClientNumbers& n, const Coefficients& c, const Place& p) {
    const Quad before = load<Wide>(in.before, index_of(p, in.d), p.count);
    Quad g = GradientMeasure::quad<Wide>(in, n, c, p);
    FF_UNROLL for (int k = 0; k < QUAD; ++k) g.e[k] = change(g.e[k], before.e[k]);
    return g;
  }
};

template <class Direction> struct DirectionMeasure {
  template <bool Wide>
  FF_DEVICE Quad quad(const ClientVectors& in, const ClientNumbers& n, const Coefficients& c, const Place& p) {
    const Quad g = GradientMeasure::quad<Wide>(in, n, c, p);
    Moments moments = load_moments<Direction, Wide>(in, p);
    return direction_quad<Direction>(n, c, g, moments);
  }
};

// Delta-SGD's update: what x really moved by, after rounding, and the gradient kept for the next step.
struct MoveMeasure {
  template <bool Wide>
  FF_DEVICE Quad quad(const ClientVectors& to, const ClientNumbers& n, const Coefficients& c, const Place& p) {
    const long long index = index_of(p, to.d);
    const Quad old = load<Wide>(to.x, index, p.count);
    Quad g, x = update_quad<DirectionSgd, Wide>(to, n, c, p, old, g);
    if (to.kept != nullptr) store<Wide>(to.kept, index, p.count, g);
    FF_UNROLL for (int k = 0; k < QUAD; ++k) x.e[k] = change(x.e[k], old.e[k]);
    return x;
  }
};

}  // namespace fastfed

#define MAKE_WIDTH(name, Direction, wide)                                  \
  FF_KERNEL(name, (fastfed::ClientVectors to, fastfed::ClientNumbers n)) { \
    fastfed::update<fastfed::Direction, wide>(to, n);                      \
  }
#define MAKE(name, Direction) \
  MAKE_WIDTH(update_##name, Direction, false) MAKE_WIDTH(update_##name##_wide, Direction, true)
FF_DIRECTIONS(MAKE)
#undef MAKE
#undef MAKE_WIDTH

#define MAKE_WIDTH(name, Measure, wide)                                                      \
  FF_KERNEL(name, (fastfed::ClientVectors to, fastfed::ClientNumbers n, double* partials)) { \
    fastfed::squares<fastfed::Measure, wide>(to, n, partials);                               \
  }
#define MAKE(name, Measure) MAKE_WIDTH(name, Measure, false) MAKE_WIDTH(name##_wide, Measure, true)
MAKE(gradient_squares, GradientMeasure)
MAKE(change_squares, ChangeMeasure)
MAKE(update_delta_sgd, MoveMeasure)
#define MAKE_DIRECTION(name, Direction) MAKE(direction_squares_##name, DirectionMeasure<fastfed::Direction>)
FF_DIRECTIONS(MAKE_DIRECTION)
#undef MAKE_DIRECTION
#undef MAKE
#undef MAKE_WIDTH
