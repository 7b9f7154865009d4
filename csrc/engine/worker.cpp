// Local training of one client on one thread.
#include "engine/worker.h"

#include <atomic>
#include <cmath>
#include <cstring>
#include <limits>

#include "engine/layers/contrast.h"
#include "kernels/parallel.h"
#include "simd/clones.h"
#include "simd/loops.h"
#include "simd/simd.h"

namespace fastfed {
namespace {

enum StateVector { kM, kV, kNu, kMu, kPreviousGradient, kPreviousModel, kGradientSum, kStateVectors };

constexpr double kNothing = std::numeric_limits<double>::quiet_NaN();

// Sum over i of a[i] * b[i] in fixed lanes.
FF_CLONES double inner(Size n, const float* __restrict a, const float* __restrict b) {
  constexpr int kLanes = 16;
  double lanes[kLanes] = {};
  Size i = 0;
  for (; i + kLanes <= n; i += kLanes)
    for (int l = 0; l < kLanes; ++l) lanes[l] += double(a[i + l]) * double(b[i + l]);
  for (int l = 0; i + l < n; ++l) lanes[l] += double(a[i + l]) * double(b[i + l]);
  double sum = 0;
  for (double lane : lanes) sum += lane;
  return sum;
}

}  // namespace

// ---- memory --------------------------------------------------------------------------------------------------------

Worker::Worker(const Program& program, Size batch)
    : program_(program),
      batch_(batch),
      batches_(program, batch),
      rows_(program),
      gram_(program.first_layer(), program.grams()),
      arena_(0),
      x_(program.d()),
      grads_(program.d()),
      statistics_(program.statistics()),
      crew_(program) {
  const auto& values = program.values();
  const auto& layers = program.layers();
  slots_.resize(values.size());
  kept_.resize(layers.size());
  Size used = 0, workspace = 0;
  std::vector<std::pair<float**, Size>> places;
  const auto room = [&](float*& pointer, Size size) {
    places.emplace_back(&pointer, used);
    used += whole_lines(size);
  };
  for (std::size_t v = 0; v < values.size(); ++v) {
    if (program.memory_of()[v] != int(v)) continue;
    const Size size = values[v].size();
    slots_[v].stride = size;
    slots_[v].grad_stride = program.per_example()[v] ? 0 : size;
    room(slots_[v].data, size * batch);
    room(slots_[v].grad, program.per_example()[v] ? size : size * batch);
  }
  for (std::size_t l = 0; l < layers.size(); ++l) {
    room(kept_[l], layers[l]->kept_size(batch));
    workspace = std::max(workspace, layers[l]->workspace_size(batch));
  }
  room(frame_.workspace, workspace);
  crew_.size(workspace);
  arena_ = AlignedArray<float>(used);
  for (const auto& [pointer, offset] : places) *pointer = arena_.data() + offset;
  for (std::size_t v = 0; v < values.size(); ++v) slots_[v] = slots_[std::size_t(program.memory_of()[v])];

  for (int i = 0; i < kStateVectors; ++i) state_.emplace_back(0);
  state_sizes_.resize(kStateVectors, 0);
  frame_.threads = 1;
  frame_.slots = slots_.data();
  frame_.kept = kept_.data();
  frame_.constants = program.constants();
}

void Worker::prepare(const Examples& examples, const float* params, const float* statistics) {
  frame_.threads = 1;
  batches_.prepare(examples, frame_);
  loaded_ = uses_gram_ = false;
  frame_.laps = nullptr;
  frame_.params = const_cast<float*>(params);  // forward passes only read it
  frame_.statistics = const_cast<float*>(statistics);
  frame_.by_batch = frame_.notes = false;
  frame_.moved = nullptr;
  frame_.dropout = nullptr;
}

void Worker::prepare(const Examples& examples, const Round& round, int threads, Laps* laps) {
  frame_.threads = threads;
  frame_.laps = laps;
  batches_.prepare(examples, round, frame_);
  inputs_change_ = examples.augment.asked();
  rows_.prepare(round.tracks, frame_);
  round_ = &round;
  loaded_ = false;
  Size wanted[kStateVectors] = {};
  const Size d = program_.d();
  for (const Optimizer& o : round.optimizers) {
    if (o.m) wanted[kM] = d;
    if (o.v) wanted[kV] = d;
    if (o.nu) wanted[kNu] = d;
    if (o.mu) wanted[kMu] = std::max(wanted[kMu], o.layout.mu_size);
    if (o.keeps_gradient || o.same_batch) wanted[kPreviousGradient] = d;
    if (o.same_batch) wanted[kPreviousModel] = d;
  }
  if (round.measure_cosine) wanted[kGradientSum] = d;
  for (std::size_t i = 0; i < kStateVectors; ++i)
    if (state_sizes_[i] < wanted[i]) {
      state_[i] = AlignedArray<float>(wanted[i]);
      state_sizes_[i] = wanted[i];
    }
  if (round.contrast.mu > 0 && anchors_size_ == 0) {
    anchors_size_ = batch_ * program_.values()[std::size_t(program_.features())].size();
    anchors_ = AlignedArray<float>(2 * anchors_size_);
  }
  frame_.dropout = round.dropout.data();
  frame_.round = round.round;
  frame_.statistics = statistics_.data();
  frame_.by_batch = frame_.notes = true;
}

// ---- one step ------------------------------------------------------------------------------------------------------

LossResult Worker::loss() {
  const Slot& slot = slots_[std::size_t(program_.output())];
  const Shape& shape = program_.values()[std::size_t(program_.output())];
  const Size numbers = frame_.batch * shape.size();
  const bool labels = program_.loss() == Loss::kCrossEntropy;
  Size divisor = 0;  // what is counted
  if (program_.reduction() == Reduction::kOutputs) divisor = frame_.batch;
  if (program_.reduction() == Reduction::kBatch) divisor = labels ? shape.rows : shape.size();
  if (labels)
    return cross_entropy(frame_.batch * shape.rows, shape.channels, slot.data, batches_.labels(), divisor, slot.grad);
  if (program_.loss() == Loss::kMse) return mse(numbers, slot.data, batches_.targets(), divisor, slot.grad);
  if (batches_.has_sparse_targets())
    return binary_cross_entropy_sparse(frame_.batch, shape.channels, slot.data, batches_.sparse_targets(), frame_.rows,
                                       divisor, slot.grad);
  return binary_cross_entropy_dense(numbers, slot.data, batches_.targets(), divisor, slot.grad);
}

// The first `layers` layers.
void Worker::forward(std::size_t layers) {
  if (uses_gram_) {
    const FirstLayer& first = program_.first_layer();
    const float* bias = first.bias < 0 ? nullptr : frame_.params + first.bias;
    gram_.forward(batches_.places(), frame_.batch, bias, slots_[std::size_t(first.output)].data, frame_.ahead);
    lap_forward(frame_.laps, std::size_t(first.place));
  }
  for (const auto& segment : program_.segments()) {
    const std::size_t end = std::min(segment.end, layers);
    const std::size_t begin = std::max(segment.begin, first_layer());
    for (std::size_t l = begin; l < end; ++l) {
      program_.layers()[l]->begin_forward(frame_);
      lap_forward(frame_.laps, l);
    }
    crew_.call(segment, frame_, [&](const Frame& f, Size e, Size count) {
      for (std::size_t l = begin; l < end; ++l) {
        program_.layers()[l]->forward(f, e, count);
        lap_forward(f.laps, l);
      }
    });
  }
}

void Worker::predict(const Size* rows, Size count, float* outputs) {
  batches_.gather(rows, count, frame_);
  forward(program_.layers().size());
  const Slot& slot = slots_[std::size_t(program_.output())];
  copy(count * slot.stride, slot.data, outputs);
}

// Forward, loss and backward of the batch at hand; the loss.
double Worker::pass(float* params, float* grads, bool fused, float lr) {
  frame_.params = params;
  frame_.grads = grads;
  frame_.fused = fused;
  frame_.lr = lr;
  if (!fused && program_.shares_params()) std::memset(grads, 0, std::size_t(program_.d()) * sizeof(float));
  forward(program_.layers().size());
  const double value = loss().value();
  lap(frame_.laps, Duty::loss);
  return value + backward(fused);
}

// Returns what the contrast adds to the loss: its gradient joins that of the last layer's input, once that is there.
double Worker::backward(bool fused) {
  const auto& segments = program_.segments();
  const std::size_t last = program_.layers().size() - 1;
  double added = 0;
  for (auto segment = segments.rbegin(); segment != segments.rend(); ++segment) {
    const std::size_t begin = std::max(segment->begin, first_layer());
    for (std::size_t l = begin; l < segment->end; ++l) {
      if (program_.active()[l]) program_.layers()[l]->begin_backward(frame_);
      lap_backward(frame_.laps, l);
    }
    crew_.call(*segment, frame_, [&](const Frame& f, Size e, Size count) {
      for (std::size_t l = segment->end; l-- > begin;) {
        if (program_.active()[l]) program_.layers()[l]->backward(f, e, count);
        if (l == last) added = contrast();
        lap_backward(f.laps, l);
      }
    });
    crew_.gather(*segment, frame_);
    if (fused && segment->by_example) apply_gathered(*segment);
    if (segment->by_example) lap(frame_.laps, Duty::rule);
  }
  if (uses_gram_) {
    gram_bias(fused);
    lap_backward(frame_.laps, first_layer() - 1);
  }
  return added;
}

// The features of the batch under the two models that are compared with, with dropout off.
void Worker::find_anchors() {
  if (!previous_) return;
  const Frame before = frame_;
  frame_.moved = nullptr;  // all rows of the table are the model's own
  frame_.dropout = nullptr;
  frame_.notes = false;
  const Slot& slot = slots_[std::size_t(program_.features())];
  float* to = anchors_.data();
  for (const float* model : {start_, previous_}) {
    frame_.params = const_cast<float*>(model);  // forward passes only read it
    forward(program_.layers().size() - 1);
    copy(frame_.batch * slot.stride, slot.data, to);
    to += anchors_size_;
  }
  frame_ = before;
}

// MOON's term of the batch at hand. A client without a previous model would be compared twice with the one it started
// from: the term is a constant.
double Worker::contrast() {
  const Contrast& wanted = round_->contrast;
  if (wanted.mu == 0) return 0.0;
  if (!previous_) return wanted.mu * std::log(2.0);
  const Slot& slot = slots_[std::size_t(program_.features())];
  const float* anchors = anchors_.data();
  return fastfed::contrast({frame_.batch, slot.stride, slot.data, anchors, anchors + anchors_size_}, wanted.mu,
                           wanted.temperature, slot.grad);
}

// Layers that are called example by example leave their gradients beside; SGD applies them when all examples are done.
void Worker::apply_gathered(const Program::Segment& segment) {
  for (std::size_t l = segment.begin; l < segment.end; ++l) {
    const Layer& layer = *program_.layers()[l];
    const std::vector<Size> sizes = layer.param_sizes();
    for (std::size_t p = 0; p < layer.spec().params.size() && program_.active()[l]; ++p) {
      const Size offset = layer.spec().params[p];
      if (offset >= 0) add_scaled(sizes[p], -frame_.lr, frame_.grads + offset, frame_.params + offset);
    }
  }
}

// Plain SGD.
double Worker::fused_step(const Optimizer& o, float lr) {
  const double value = pass(x_.data(), grads_.data(), true, lr);
  rows_.step(frame_, may_wait_ && step_ + 1 == steps_, x_.data());
  lap(frame_.laps, Duty::rule);
  if (uses_gram_) gram_step(o, double(lr));
  return value;
}

// Whether this optimizer's update can go straight into the weights, so that no gradient is stored.
bool Worker::fuses(const Optimizer& o) const {
  return is_plain_sgd(o) && !round_->corrections && !round_->measure_cosine && !program_.shares_params();
}

double Worker::learning_rate(const Optimizer& o, Size step) const {
  const double lr = round_->lr ? round_->lr[position_] : o.numbers.lr;
  return o.warmup ? lr * std::min(1.0, double(step + o.from_first) / double(o.warmup)) : lr;
}

// FATHOM's min over local steps K >= 1 of cos(sum_{k<K} g_k, g_K), on gradients as they come; the sum goes to k = K
// where the round says so.
void Worker::measure_cosine(Size step) {
  const Size d = program_.d();
  float* sum = state_[kGradientSum].data();
  if (step == 0) return copy(d, grads_.data(), sum);
  if (round_->cosine_includes_step) add_to(d, grads_.data(), sum);
  const double product = inner(d, sum, grads_.data());
  const double lengths = std::sqrt(inner(d, sum, sum)) * std::sqrt(inner(d, grads_.data(), grads_.data()));
  const double cosine = lengths > 0 ? product / lengths : 0.0;
  min_cosine_ = std::isnan(min_cosine_) ? cosine : std::min(min_cosine_, cosine);
  if (!round_->cosine_includes_step) add_to(d, grads_.data(), sum);
}

const float* Worker::correction_of() const {
  return round_->corrections ? round_->corrections + position_ * program_.d() : nullptr;
}

void Worker::rule_step(const Optimizer& o, double lr, double loss_value) {
  if (!uses_gram_) return rule_step(o, lr, loss_value, 0, program_.d());
  const FirstLayer& first = program_.first_layer();
  const Size rest = std::min(whole_lines(first.weight_end()), program_.d());
  if (first.weight > 0) rule_step(o, lr, loss_value, 0, first.weight);
  if (rest < program_.d()) rule_step(o, lr, loss_value, rest, program_.d() - rest);
  gram_step(o, lr);
}

// Of n numbers of the model from `begin` on; all of them, where the rule looks at more than one at a time.
void Worker::rule_step(const Optimizer& o, double lr, double loss_value, Size begin, Size n) {
  const auto vector = [&](StateVector which, bool used) { return used ? state_[which].data() + begin : nullptr; };
  const std::int64_t epoch = batches_.epoch() + 1;
  ClientVectors<float> vectors{1,
                               n,
                               o.layout.mu_size,
                               x_.data() + begin,
                               grads_.data() + begin,
                               vector(kM, o.m != nullptr),
                               vector(kV, o.v != nullptr),
                               vector(kNu, o.nu != nullptr),
                               vector(kMu, o.mu != nullptr),
                               vector(kPreviousGradient, o.keeps_gradient),
                               vector(kPreviousGradient, o.same_batch),
                               o.numbers.prox > 0 ? start_ + begin : nullptr,
                               correction_of(),
                               false,
                               false};
  if (o.same_batch && steps_done_ == 0) vectors.previous_grad = grads_.data();
  const ClientScalars scalars{&steps_done_, &refreshes_, &lr_state_,  &theta_,
                              &move_,       &lr,         &loss_value, o.counts_epochs ? &epoch : nullptr,
                              nullptr};
  const double grown = o.step_size == kDeltaSgd ? largest_growth(o, lr) : 0.0;
  client_step<float>({o.formula, o.cover, o.step_size, o.numbers, vectors, scalars, &o.layout, frame_.threads});
  if (o.step_size == kDeltaSgd) count_bound(o, grown);
  lap(frame_.laps, Duty::rule);
}

// What Delta-SGD's step size may grow to in the next step; a first step that does not grow has none.
double Worker::largest_growth(const Optimizer& o, double lr) const {
  const ClientNumbers& n = o.numbers;
  const auto unmeasured = [&n](double from, double theta) {
    return delta_sgd_step_size(0.0, 0.0, from, theta, n.gamma, n.delta, n.lr_eps).step;
  };
  if (steps_done_ > 0) return unmeasured(lr_state_, theta_);
  return n.grow_first ? unmeasured(lr, n.theta) : kNothing;
}

// Whether the step just taken was bound by that growth or by what was measured; neither where there was no choice.
void Worker::count_bound(const Optimizer& o, double grown) {
  if (std::isnan(grown)) return;
  const bool grew = lr_state_ == grown || lr_state_ == grown + o.numbers.lr_eps;
  ++(grew ? grown_steps_ : measured_steps_);
}

// In a step's number: masks of their own for a second look at its batch.
constexpr Word kAnother = Word(1) << 31;

// Delta-SGD's other gradient: at the model before this one, on the same batch, corrected and clipped as this one is.
void Worker::previous_gradient(const Optimizer& o) {
  const ClientNumbers& n = o.numbers;
  float *model = state_[kPreviousModel].data(), *gradient = state_[kPreviousGradient].data();
  frame_.step ^= kAnother;
  frame_.notes = false;  // the batch is shown once
  pass(model, grads_.data(), false, 0.0f);
  frame_.notes = true;
  frame_.step ^= kAnother;
  vector_loops<float>().correct(program_.d(), gradient, grads_.data(), model, n.prox > 0 ? start_ : nullptr,
                                correction_of(), float(n.weight_decay), float(n.prox), 1.0f);
  if (n.clip > 0) {
    const double norm = std::sqrt(vector_loops<float>().squares(program_.d(), gradient));
    vector_loops<float>().multiply(program_.d(), gradient, float(clip_scale(norm, n.clip)));
  }
}

// One local step on the batch at hand; the loss before it.
double Worker::take_step(const Optimizer& o, Size step) {
  const double lr = o.step_size == kSps ? 0.0 : learning_rate(o, step);
  find_anchors();
  if (fuses(o)) {
    lr_state_ = lr;
    return fused_step(o, float(lr));
  }
  if (o.same_batch && step > 0) previous_gradient(o);
  const double value = pass(x_.data(), grads_.data(), false, 0.0f);
  if (round_->measure_cosine) measure_cosine(step);
  if (o.same_batch) copy(program_.d(), x_.data(), state_[kPreviousModel].data());
  if (o.step_size == kGiven) lr_state_ = lr;
  rule_step(o, lr, value);
  return value;
}

// ---- one client ----------------------------------------------------------------------------------------------------

void Worker::reset_state(const Optimizer& o) {
  const Size d = program_.d();
  if (o.m) copy(d, o.m, state_[kM].data());
  if (o.v) copy(d, o.v, state_[kV].data());
  if (o.nu) copy(d, o.nu, state_[kNu].data());
  if (o.mu) copy(o.layout.mu_size, o.mu, state_[kMu].data());
  if (o.keeps_gradient) std::memset(state_[kPreviousGradient].data(), 0, std::size_t(d) * sizeof(float));
  steps_done_ = refreshes_ = 0;
  lr_state_ = theta_ = move_ = 0;
  min_cosine_ = kNothing;
  grown_steps_ = measured_steps_ = o.step_size == kDeltaSgd ? 0.0 : kNothing;
}

void Worker::begin(Size position) {
  position_ = position;
  step_ = 0;
  steps_ = steps_taken(*round_, position);
  batches_.begin(position);
  frame_.client = Word(round_->ids[position]);
  const float* start = round_->start + start_index_of(position) * program_.d();
  const bool is_there = loaded_ && start == start_;  // it was brought back
  start_ = frame_.start = start;
  const Size own = round_->contrast.mu > 0 ? round_->contrast.row[position] : -1;
  previous_ = own < 0 ? nullptr : round_->contrast.previous + own * program_.d();
  if (!is_there) restore();
  loaded_ = true;
  rows_.begin();
  if (round_->statistics)
    copy(program_.statistics(), round_->statistics + (round_->own_statistics ? position * program_.statistics() : 0),
         statistics_.data());
  const Optimizer& optimizer = optimizer_of(position);
  reset_state(optimizer);
  lap(frame_.laps, Duty::begin);
  uses_gram_ = takes_gram_form(optimizer) && enter_gram_form();
}

const Optimizer& Worker::optimizer_of(Size position) const {
  return round_->optimizers[std::size_t(round_->optimizer_index ? round_->optimizer_index[position] : 0)];
}

double Worker::delta_squares() const {
  const auto squares = vector_loops<float>().change_squares;
  double sum = 0;
  rows_.for_moved([&](Size begin, Size n) { sum += squares(n, x_.data() + begin, start_ + begin); });
  return sum;
}

void Worker::copy_delta(float* to) const {
  if (round_->tracks) std::fill(to, to + program_.d(), 0.0f);
  rows_.for_moved([&](Size begin, Size n) {
    for (Size i = begin; i < begin + n; ++i) to[i] = x_.data()[i] - start_[i];
  });
}

// What stays with the client leaves its model: the moves there, which no delta has then.
void Worker::take_own(float* moves) {
  for (Size i = 0; i < round_->own_count; ++i) {
    const Size place = round_->own_places[i];
    moves[i] = x_.data()[place] - start_[place];
    x_.data()[place] = start_[place];
  }
}

void Worker::restore() {
  rows_.for_dense([&](Size begin, Size n) {
    for_chunks(n, frame_.threads,
               [&](Size at, Size count) { copy(count, start_ + begin + at, x_.data() + begin + at); });
  });
}

// Whether no number of the delta can be infinite.
bool Worker::is_moderate() const {
  std::atomic<bool> moderate{round_->start_is_moderate[std::size_t(start_index_of(position_))]};
  const auto look = [&](Size begin, Size n) {
    for_chunks(n, frame_.threads, [&](Size at, Size count) {
      if (moderate && !are_moderate(count, x_.data() + begin + at)) moderate = false;
    });
  };
  rows_.pending() ? rows_.for_dense(look) : rows_.for_moved(look);
  return moderate;
}

// Adds the client's delta to its lane, unless it is not finite, and brings x back to start; the delta's squares.
double Worker::hand_over(double weight, Lane& lane, bool is_last) {
  const double scale = round_->divide_by_steps ? 1.0 / double(step_) : 1.0;
  const auto add = [&](double factor) {
    return lane.add(float(factor), x_.data(), start_, rows_.moves(frame_), frame_.threads, is_last);
  };
  if (round_->clip == 0 && is_moderate()) return add(weight * scale);  // the usual case, in one pass
  if (rows_.pending()) rows_.apply(frame_, x_.data());
  const double squares = delta_squares();
  if (!std::isfinite(squares)) {
    restore();
    return squares;
  }
  const double clipping = round_->clip > 0 ? clip_scale(std::sqrt(squares) * scale, round_->clip) : 1.0;
  add(weight * scale * clipping);
  return squares;
}

// To the inputs of the batch after the one at hand.
void Worker::look_ahead(Size next) {
  if (frame_.ahead == nullptr) return;
  if (uses_gram_) {  // it has all of its own
    if (step_ == 0 && next >= 0) batches_.look_ahead(next);
  } else if (step_ + 1 < steps_) {
    batches_.look_ahead(position_, step_ + 1);
  } else if (next >= 0) {
    batches_.look_ahead(next, 0);
  }
}

void Worker::train(Size position, Size next, double weight, const Results& r, Lane& lane) {
  begin(position);
  may_wait_ = !r.deltas && round_->clip == 0;
  const Optimizer& optimizer = optimizer_of(position);
  double first = kNothing, last = kNothing, total = 0;
  for (; step_ < steps_; ++step_) {
    batches_.gather(step_, frame_, uses_gram_);
    look_ahead(next);
    if (round_->interrupted()) throw Interrupted();
    lap(frame_.laps, Duty::read);
    last = take_step(optimizer, step_);
    if (step_ == 0) first = last;
    total += last;
  }
  const bool moved = step_ > 0;
  if (uses_gram_) {
    gram_.finish(x_.data() + program_.first_layer().weight);
    lap_backward(frame_.laps, std::size_t(program_.first_layer().place));
  }
  if (r.own) take_own(r.own + position * round_->own_count);
  if (r.statistics) copy(program_.statistics(), statistics_.data(), r.statistics + position * program_.statistics());
  if (r.deltas) copy_delta(r.deltas + position * program_.d());
  const double squares = moved ? hand_over(weight, lane, next < 0) : 0.0;
  r.examples[position] = double(batches_.client_examples());
  r.steps[position] = double(step_);
  r.first_loss[position] = first;
  r.last_loss[position] = last;
  r.mean_loss[position] = moved ? total / double(step_) : kNothing;
  r.delta_norm[position] = std::sqrt(squares);
  r.step_size[position] = moved ? lr_state_ : kNothing;
  r.grown_steps[position] = moved ? grown_steps_ : kNothing;
  r.measured_steps[position] = moved ? measured_steps_ : kNothing;
  r.min_cosine[position] = min_cosine_;
  r.refused[position] = !std::isfinite(squares);
  rows_.forget();
  lap(frame_.laps, Duty::hand_over);
}

}  // namespace fastfed
