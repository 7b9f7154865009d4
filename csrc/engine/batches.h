// The batches of the client at work: which examples a local step sees, and their numbers as the layers read them.
#pragma once

#include <vector>

#include "engine/program.h"

namespace fastfed {

class Batches {
 public:
  Batches(const Program& program, Size batch);

  // Before predictions, and before a round: the frame is told where batches will lie.
  void prepare(const Examples& examples, Frame& frame);
  void prepare(const Examples& examples, const Round& round, Frame& frame);
  // Before a client's first batch.
  void begin(Size position);

  // What is wanted ahead becomes the inputs of this client at this step, which may be another client, at its first one.
  void look_ahead(Size position, Size step);
  // All of this client's inputs, in the order in which it has them.
  void look_ahead(Size position);

  // The batch of local step `step` (from 0), with its targets; `without_inputs` where those are known already.
  void gather(Size step, Frame& frame, bool without_inputs = false);
  // Some rows of the example store, at most a batch, without targets.
  void gather(const Size* rows, Size count, Frame& frame);

  // Which of the client's examples the batch has, by their numbers among them.
  const Size* places() const { return places_.data(); }
  // The client's examples as rows of the example store.
  const Size* client_rows() const { return round_->rows + round_->offsets[position_]; }
  Size client_examples() const { return examples_of(position_); }
  Size epoch() const { return epoch_; }  // that the batch begins in, from 0

  // The targets of the batch at hand; which of them there are is a matter of the example store.
  const std::int32_t* labels() const { return labels_.data(); }
  const float* targets() const { return targets_.data(); }
  bool has_sparse_targets() const { return examples_->target_kind == TargetKind::kSparse; }
  const SparseRows& sparse_targets() const { return examples_->sparse_targets; }

 private:
  // How an image is seen: where its crop begins, and whether it is mirrored.
  struct View {
    Size top, left;
    bool flipped;
  };

  // A client's examples in the order of an epoch.
  struct Order {
    Size position = -1, epoch = -1;
    std::vector<Size> places;
    bool is_of(Size client, Size when) const { return position == client && epoch == when; }
  };
  // Full batches and a short one make an epoch: where a step's batch begins in its order.
  struct Stretch {
    Size epoch, begin, count;
  };

  Size examples_of(Size position) const { return round_->offsets[position + 1] - round_->offsets[position]; }
  void shuffle(Order& order, Size position, Size epoch) const;
  const Size* order_of(Size epoch);
  Stretch stretch_of(Size position, Size step) const;
  Size choose(Size step);
  Size stored_bytes() const;
  void want(const Size* rows, const Size* places, Size count);
  Words words_at(const StreamKey& key, Size stream_position) const;
  View view_at(Size stream_position) const;
  View middle_view() const;
  void gather_inputs(const Frame& frame, bool training);
  void gather_floats(Size row, Size next, float* to) const;
  void gather_bytes(Size row, float* to) const;
  void gather_augmented(Size row, const View& view, float* to) const;
  void gather_tokens(Size row, std::int32_t* to) const;
  void gather_targets(Size batch);

  const Program& program_;
  Size batch_;
  const Examples* examples_ = nullptr;
  const Round* round_ = nullptr;
  std::vector<std::int32_t> tokens_, labels_;
  std::vector<float> targets_;
  std::vector<Size> rows_, places_;
  Order order_, coming_;  // of the client at work; of what is looked ahead to
  Ahead ahead_;

  Size position_ = 0, epoch_ = 0;
  Size first_ = 0;  // stream position of the batch's first example; the others follow it
};

}  // namespace fastfed
