// What a client kernel is given, the gradient that a rule sees and the step it takes: shared by client_step.cu,
// sm3_step.cu and dense_step.cu.
#pragma once

#include "cuda/grid.h"

namespace fastfed {

// One row of kernels/passes.py's coefficient matrix, in its order.
struct Coefficients {
  float active, scale, refresh, keep, step, root_scale;
};

// Rows (clients, d); null where the call or the rule has none. Anchor and correction may be one row for all clients:
// then their stride is 0, else d.
struct ClientVectors {
  float* x;  // null in a pass that only reads, where the gradient does not depend on it
  const float* grad;
  const float* anchor;
  const float* correction;
  const float* before;  // Delta-SGD: the gradient to compare with
  float* m;
  float* v;     // the second moment; SM3: nu
  float* kept;  // Delta-SGD: where the gradient is kept for the next step
  const Coefficients* coefficients;
  long long clients, d, anchor_stride, correction_stride;
};

struct ClientNumbers {
  float weight_decay, prox, beta1, gain1, beta2, gain2, eps, root_eps;
};

// Where one quad of one client lies.
struct Place {
  long long client, column;
  int count;
};

FF_DEVICE long long index_of(const Place& p, long long stride) { return p.client * stride + p.column; }

FF_DEVICE DirectionNumbers<float> direction_numbers(const ClientNumbers& n, const Coefficients& c) {
  return {n.beta1, n.gain1, n.beta2, n.gain2, n.eps, n.root_eps, c.root_scale, c.keep};
}

template <bool Wide> FF_DEVICE Quad load_or_zero(const float* rows, long long index, int count) {
  return rows == nullptr ? Quad{} : load<Wide>(rows, index, count);
}

// What the rule sees of a quad of a raw gradient g, x being the same quad of the model.
template <bool Wide>
FF_DEVICE Quad corrected_quad(const ClientVectors& in, const ClientNumbers& n, const Place& p, const Quad& x, Quad g,
                              float scale) {
  Quad anchor = x, correction = {};
  if (in.anchor != nullptr) anchor = load<Wide>(in.anchor, index_of(p, in.anchor_stride), p.count);
  if (in.correction != nullptr) correction = load<Wide>(in.correction, index_of(p, in.correction_stride), p.count);
  FF_UNROLL for (int k = 0; k < QUAD; ++k) {
    g.e[k] = corrected_gradient(g.e[k], x.e[k], anchor.e[k], correction.e[k], n.weight_decay, n.prox, scale);
  }
  return g;
}

template <bool Wide>
FF_DEVICE Quad gradient_quad(const ClientVectors& in, const ClientNumbers& n, const Place& p, const Quad& x,
                             float scale) {
  return corrected_quad<Wide>(in, n, p, x, load<Wide>(in.grad, index_of(p, in.d), p.count), scale);
}

// A quad of the moments, of which a rule may have one, both or none.
struct Moments {
  Quad m, v;
};

template <class Direction, bool Wide> FF_DEVICE Moments load_moments(const ClientVectors& in, const Place& p) {
  Moments moments = {};
  if constexpr (Direction::has_m) moments.m = load<Wide>(in.m, index_of(p, in.d), p.count);
  if constexpr (Direction::has_v) moments.v = load<Wide>(in.v, index_of(p, in.d), p.count);
  return moments;
}

template <class Direction, bool Wide>
FF_DEVICE void store_moments(const ClientVectors& to, const Coefficients& c, const Place& p, const Moments& moments) {
  if constexpr (Direction::has_m) store<Wide>(to.m, index_of(p, to.d), p.count, moments.m);
  if (Direction::has_v && c.refresh != 0.0f) store<Wide>(to.v, index_of(p, to.d), p.count, moments.v);
}

// This step's direction; the moments are brought up to date.
template <class Direction>
FF_DEVICE Quad direction_quad(const ClientNumbers& n, const Coefficients& c, const Quad& g, Moments& moments) {
  const DirectionNumbers<float> numbers = direction_numbers(n, c);
  Quad direction;
  FF_UNROLL for (int k = 0; k < QUAD; ++k) {
    float &m = moments.m.e[k], &v = moments.v.e[k];
    if (Direction::has_v && c.refresh != 0.0f) v = second_moment(v, g.e[k] * g.e[k], n.beta2, n.gain2);
    direction.e[k] = Direction::of(g.e[k], m, v, numbers);
  }
  return direction;
}

// Moves x from `old` along the corrected gradient g and stores it with the moments; the new x.
template <class Direction, bool Wide>
FF_DEVICE Quad step_quad(const ClientVectors& to, const ClientNumbers& n, const Coefficients& c, const Place& p,
                         const Quad& old, const Quad& g, Moments& moments) {
  const Quad direction = direction_quad<Direction>(n, c, g, moments);
  Quad x;
  FF_UNROLL for (int k = 0; k < QUAD; ++k) x.e[k] = moved(old.e[k], direction.e[k], c.step);
  store<Wide>(to.x, index_of(p, to.d), p.count, x);
  store_moments<Direction, Wide>(to, c, p, moments);
  return x;
}

}  // namespace fastfed
