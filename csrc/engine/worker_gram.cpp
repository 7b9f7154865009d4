// What a worker does where the first layer is trained in Gram form (gram.h).
#include <algorithm>
#include <utility>

#include "engine/worker.h"
#include "simd/loops.h"

namespace fastfed {

// Whether every step of this optimizer is linear in the gradients so far, and nothing but the rule looks at them.
bool Worker::is_linear(const Optimizer& o) const {
  const bool is_linear_rule = o.formula == kDirectionSgd || o.formula == kDirectionMomentum;
  return is_linear_rule && o.step_size == kGiven && o.numbers.clip == 0 && !round_->corrections &&
         !round_->measure_cosine && round_->contrast.mu == 0;
}

bool Worker::takes_gram_form(const Optimizer& o) const {
  const FirstLayer& first = program_.first_layer();
  if (round_->gram == GramUse::kNever || !first.exists() || inputs_change_ || steps_ == 0 || !is_linear(o))
    return false;
  const Size n = batches_.client_examples();
  const Size per_epoch = (n + round_->batch_size - 1) / round_->batch_size, rest = steps_ % per_epoch;
  const Size stepped = steps_ / per_epoch * n + std::min(rest * round_->batch_size, n);
  const Size seen = round_->seen ? std::min(round_->seen[position_], steps_ * round_->batch_size) : stepped;
  return round_->gram == GramUse::kAlways || GramForm::pays(first, n, seen);
}

// All of the client's examples become the layer's inputs at once. False where their products are beyond floats: what is
// never drawn must not spoil what is.
bool Worker::enter_gram_form() {
  const FirstLayer& first = program_.first_layer();
  const Size n = batches_.client_examples();
  float* inputs = gram_.take_inputs(n);
  Slot& slot = slots_[std::size_t(first.input)];
  const struct Elsewhere {  // the examples go there, and nothing else
    Elsewhere(Slot& given, float* there) : slot(given), usual(std::exchange(given.data, there)) {}
    ~Elsewhere() { slot.data = usual; }
    Slot& slot;
    float* usual;
  } elsewhere(slot, inputs);
  for (Size e = 0; e < n; e += batch_, slot.data += batch_ * first.in) {
    batches_.gather(batches_.client_rows() + e, std::min(batch_, n - e), frame_);
    lap(frame_.laps, Duty::read);
    for (int l = 0; l < first.place; ++l) program_.layers()[std::size_t(l)]->forward(frame_, 0, frame_.batch);
  }
  const bool is_finite = gram_.begin(start_ + first.weight, batch_);
  lap_forward(frame_.laps, std::size_t(first.place));
  return is_finite;
}

// The first layer that is called as others are.
std::size_t Worker::first_layer() const { return uses_gram_ ? std::size_t(program_.first_layer().place) + 1 : 0; }

void Worker::gram_bias(bool fused) {
  const FirstLayer& first = program_.first_layer();
  if (first.bias < 0) return;
  sum_rows(frame_.batch, first.out, slots_[std::size_t(first.output)].grad, frame_.workspace);
  if (fused)
    add_scaled(first.out, -frame_.lr, frame_.workspace, frame_.params + first.bias);
  else
    copy(first.out, frame_.workspace, frame_.grads + first.bias);
}

void Worker::gram_step(const Optimizer& o, double lr) {
  const ClientNumbers& n = o.numbers;
  const bool keeps = o.formula == kDirectionMomentum;
  const float* slope = slots_[std::size_t(program_.first_layer().output)].grad;
  gram_.step(batches_.places(), frame_.batch, slope,
             {lr, keeps ? n.beta1 : 0.0, keeps ? n.gain1 : 1.0, n.weight_decay, n.prox, keeps});
  lap_backward(frame_.laps, std::size_t(program_.first_layer().place));
}

}  // namespace fastfed
