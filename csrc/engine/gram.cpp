#include "engine/gram.h"

#include <algorithm>
#include <cmath>

#include "simd/loops.h"
#include "simd/products.h"

namespace fastfed {
namespace {

// Rows of X X^T that are made at once. It is symmetric: only what lies left of the diagonal is multiplied.
constexpr Size kGramRows = 12;

// What it takes beyond its multiplications, in multiplications: copies, and products of few numbers.
constexpr Size kOverhead = 1 << 17;
// It must be so much better on paper: its products are smaller, and it brings other bits.
constexpr double kMargin = 1.25;
// Of memory, in numbers for one client.
constexpr Size kMost = Size(1) << 24;

}  // namespace

bool GramForm::pays(const FirstLayer& layer, Size n, Size seen) {
  if (!layer.exists() || n == 0 || n * (layer.in + n + 2 * layer.out) > kMost) return false;
  const double in = double(layer.in), out = double(layer.out), examples = double(n), visits = double(seen);
  const double directly = 2 * visits * in * out;
  const double so = 2 * examples * in * out + examples * examples / 2 * in + visits * examples * out;
  return directly > kMargin * (so + double(kOverhead));
}

float* GramForm::take_inputs(Size n) {
  n_ = n;
  return inputs_.of(n * layer_.in);
}

bool GramForm::begin(const float* w, Size batch) {
  product_nt(n_, layer_.out, layer_.in, inputs_.data(), w, nullptr, outputs_.of(moves_size()));
  if (!measure()) return false;
  moves_.of(moves_size());
  rows_.of(batch * n_);
  moved_ = false;
  share_ = 1;
  pull_ = 0;
  return true;
}

// X X^T, as it was kept or anew.
bool GramForm::measure() {
  marks_.resize(std::size_t(n_));
  store_.mark(n_, inputs_.data(), marks_.data());
  gram_ = store_.find(n_, marks_.data());
  if (gram_) return true;
  if (!multiply()) return false;
  gram_ = own_gram_.data();
  store_.keep(n_, marks_.data(), gram_);
  return true;
}

bool GramForm::multiply() {
  const float* x = inputs_.data();
  float* to = own_gram_.of(n_ * n_);
  for (Size first = 0; first < n_; first += kGramRows) {
    const Size rows = std::min(kGramRows, n_ - first);
    products().dot({rows, first + rows, layer_.in, x + first * layer_.in, layer_.in, x, layer_.in, to + first * n_, n_,
                    nullptr, 0});
  }
  for (Size i = 0; i < n_; ++i)
    for (Size j = 0; j < i; ++j) to[j * n_ + i] = to[i * n_ + j];
  bool finite = true;  // no product is larger than the larger of two squares
  for (Size i = 0; i < n_; ++i) finite = finite && std::isfinite(to[i * n_ + i]);
  return finite;
}

void GramForm::forward(const Size* places, Size count, const float* bias, float* y, Ahead* ahead) {
  const Size out = layer_.out;
  const float share = float(share_);
  for (Size e = 0; e < count; ++e) {
    const float* from = outputs_.data() + places[e] * out;
    float* to = y + e * out;
    for (Size o = 0; o < out; ++o) to[o] = share * from[o] + (bias ? bias[o] : 0.0f);
    copy(n_, gram_ + places[e] * n_, rows_.data() + e * n_);
    if (ahead) ahead->fetch();
  }
  if (moved_)
    products().outer({count, out, n_, 1, rows_.data(), n_, 1, 0, moves_.data(), out, 0, y, out, 1.0f, y, out});
}

void GramForm::step(const Size* places, Size count, const float* dy, const Step& step) {
  if (!moved_) std::fill_n(moves_.data(), moves_size(), 0.0f);
  if (step.keeps && !moved_) std::fill_n(velocity_.of(moves_size()), moves_size(), 0.0f);
  moved_ = true;
  const double pull = step.gain * (step.decay * share_ + step.prox * (share_ - 1));
  if (step.keeps) {
    keep(places, count, dy, step);
    pull_ = step.momentum * pull_ + pull;
    share_ -= step.lr * pull_;
    return;
  }
  const double kept = 1 - step.lr * step.gain * (step.decay + step.prox);
  if (kept != 1)
    for (Size i = 0; i < moves_size(); ++i) moves_.data()[i] *= float(kept);
  share_ -= step.lr * pull;
  for (Size e = 0; e < count; ++e)
    add_scaled(layer_.out, -float(step.lr * step.gain), dy + e * layer_.out, moves_.data() + places[e] * layer_.out);
}

// As `step`, by way of u.
void GramForm::keep(const Size* places, Size count, const float* dy, const Step& step) {
  float *u = velocity_.data(), *moves = moves_.data();
  const float momentum = float(step.momentum), pull = float(step.gain * (step.decay + step.prox));
  for (Size i = 0; i < moves_size(); ++i) u[i] = momentum * u[i] + pull * moves[i];
  for (Size e = 0; e < count; ++e)
    add_scaled(layer_.out, float(step.gain), dy + e * layer_.out, u + places[e] * layer_.out);
  add_scaled(moves_size(), -float(step.lr), u, moves);
}

void GramForm::finish(float* w) const {
  if (!moved_) return;
  const float share = float(share_);
  if (share_ != 1)
    for (Size i = 0; i < layer_.in * layer_.out; ++i) w[i] *= share;
  product_tn(layer_.out, layer_.in, n_, 1.0f, moves_.data(), inputs_.data(), 1.0f, w);
}

}  // namespace fastfed
