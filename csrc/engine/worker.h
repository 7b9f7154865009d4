// The half of the engine that one client at a time has: its memory, and its local training.
#pragma once

#include <vector>

#include "engine/batches.h"
#include "engine/crew.h"
#include "engine/lanes.h"
#include "engine/layers/losses.h"
#include "engine/program.h"
#include "engine/rows.h"
#include "kernels/aligned.h"

namespace fastfed {

class Worker {
 public:
  Worker(const Program& program, Size batch);

  Size batch() const { return batch_; }

  // Before a round: room for what its optimizers keep; `threads` share the work of a client. `laps`: this thread's
  // watch, or null.
  void prepare(const Examples& examples, const Round& round, int threads, Laps* laps);
  // Trains the client at this position and adds its delta to its lane with this weight, unless it is not finite. `next`
  // is the one that comes after it there, -1: nobody.
  void train(Size position, Size next, double weight, const Results& results, Lane& lane);

  // Before predictions with the model `params` (d,) and its running statistics (s,).
  void prepare(const Examples& examples, const float* params, const float* statistics);
  // The model's outputs for `count` examples, at most batch(), with dropout off.
  void predict(const Size* rows, Size count, float* outputs);

  Size position() const { return position_; }
  Size local_step() const { return step_; }

 private:
  // one step
  void forward(std::size_t layers);
  double pass(float* params, float* grads, bool fused, float lr);
  double fused_step(const Optimizer& optimizer, float lr);
  LossResult loss();
  double backward(bool fused);
  void find_anchors();
  double contrast();
  void apply_gathered(const Program::Segment& segment);
  bool fuses(const Optimizer& optimizer) const;
  double take_step(const Optimizer& optimizer, Size step);
  void previous_gradient(const Optimizer& optimizer);
  const float* correction_of() const;
  void rule_step(const Optimizer& optimizer, double lr, double loss_value);
  void rule_step(const Optimizer& optimizer, double lr, double loss_value, Size begin, Size n);
  double largest_growth(const Optimizer& optimizer, double lr) const;
  void count_bound(const Optimizer& optimizer, double grown);
  double learning_rate(const Optimizer& optimizer, Size step) const;
  void measure_cosine(Size step);

  // the first layer in Gram form
  bool is_linear(const Optimizer& optimizer) const;
  bool takes_gram_form(const Optimizer& optimizer) const;
  bool enter_gram_form();
  void gram_bias(bool fused);
  void gram_step(const Optimizer& optimizer, double lr);
  std::size_t first_layer() const;

  // one client
  Size start_index_of(Size position) const { return round_->start_index ? round_->start_index[position] : 0; }
  const Optimizer& optimizer_of(Size position) const;
  void begin(Size position);
  void look_ahead(Size next);
  void reset_state(const Optimizer& optimizer);
  double delta_squares() const;
  double hand_over(double weight, Lane& lane, bool is_last);
  bool is_moderate() const;
  void copy_delta(float* to) const;
  void take_own(float* moves);
  void restore();

  const Program& program_;
  Size batch_;
  const Round* round_ = nullptr;
  bool inputs_change_ = false;  // from epoch to epoch
  Batches batches_;
  TrackedRows rows_;
  GramForm gram_;

  // memory sized once
  AlignedArray<float> arena_;
  std::vector<Slot> slots_;
  std::vector<float*> kept_;
  AlignedArray<float> x_, grads_, statistics_;
  std::vector<AlignedArray<float>> state_;  // m, v, nu, mu, previous gradient, previous model, sum of gradients
  std::vector<Size> state_sizes_;
  AlignedArray<float> anchors_;  // the batch's features under the start model and under the previous one
  Size anchors_size_ = 0;
  Frame frame_{};
  Crew crew_;

  // the client at work
  Size position_ = 0, step_ = 0, steps_ = 0;
  bool may_wait_ = false;   // the gradients of its last step may wait in rows_
  bool uses_gram_ = false;  // its first layer is trained in Gram form
  const float* start_ = nullptr;
  const float* previous_ = nullptr;  // the model of the client's last round, where the round compares with it
  bool loaded_ = false;
  std::int64_t steps_done_ = 0, refreshes_ = 0;
  double lr_state_ = 0, theta_ = 0, move_ = 0, min_cosine_ = 0;
  double grown_steps_ = 0, measured_steps_ = 0;  // Delta-SGD's, by what bound their step sizes
};

}  // namespace fastfed
