// What a client kernel is given, and the gradient that a rule sees: shared by client_step.cu and sm3_step.cu.
#pragma once

#include "cuda/grid.h"

namespace fastfed {

// One row of kernels/phases.py's coefficient matrix, in its order.
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

template <bool Wide>
FF_DEVICE Quad gradient_quad(const ClientVectors& in, const ClientNumbers& n, const Place& p, const Quad& x,
                             float scale) {
  Quad g = load<Wide>(in.grad, index_of(p, in.d), p.count), anchor = x, correction = {};
  if (in.anchor != nullptr) anchor = load<Wide>(in.anchor, index_of(p, in.anchor_stride), p.count);
  if (in.correction != nullptr) correction = load<Wide>(in.correction, index_of(p, in.correction_stride), p.count);
  FF_UNROLL for (int k = 0; k < QUAD; ++k) {
    g.e[k] = corrected_gradient(g.e[k], x.e[k], anchor.e[k], correction.e[k], n.weight_decay, n.prox, scale);
  }
  return g;
}

}  // namespace fastfed
