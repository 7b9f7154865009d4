// Rows of the example store in the order of a client's shuffles, gathered into the layout of the first value.
#include "engine/batches.h"

#include <algorithm>
#include <stdexcept>
#include <string>

#include "kernels/random.h"
#include "simd/loops.h"

namespace fastfed {

Batches::Batches(const Program& program, Size batch)
    : program_(program), batch_(batch), rows_(static_cast<std::size_t>(batch)) {
  const Shape& input = program.values().front();
  if (input.kind == Kind::kTokens) tokens_.resize(std::size_t(batch * input.rows));
}

void Batches::prepare(const Examples& examples, Frame& frame) {
  examples_ = &examples;
  frame.sparse = examples.sparse_inputs;
  frame.tokens = tokens_.data();
  frame.rows = rows_.data();
}

void Batches::prepare(const Examples& examples, const Round& round, Frame& frame) {
  prepare(examples, frame);
  round_ = &round;
  labels_.resize(std::size_t(batch_ * examples.target_size));
  targets_.resize(examples.target_kind == TargetKind::kFloats ? labels_.size() : 0);
  Size most = 0;
  for (Size c = 0; c < round.clients; ++c) most = std::max(most, round.offsets[c + 1] - round.offsets[c]);
  if (Size(order_.size()) < most) order_.resize(std::size_t(most));
}

void Batches::begin(Size position) {
  position_ = position;
  ordered_epoch_ = -1;
}

void Batches::order_of(Size epoch) {
  if (epoch == ordered_epoch_) return;
  const Stream stream{round_->shuffle.key0, round_->shuffle.key1, Word(epoch), round_->round};
  const Size id = round_->ids[position_];
  permutation(1, client_examples(), stream, &id, order_.data(), 1);
  ordered_epoch_ = epoch;
}

// Fills rows_ with the examples of local step `step` (from 0); their number.
Size Batches::choose_rows(Size step) {
  const Size n = client_examples(), size = round_->batch_size;
  const Size* mine = round_->rows + round_->offsets[position_];
  if (round_->seen) {
    const Size end = std::min((step + 1) * size, round_->seen[position_]);
    for (Size p = step * size; p < end; ++p) {
      order_of(p / n);
      rows_[std::size_t(p - step * size)] = mine[order_[std::size_t(p % n)]];
    }
    epoch_ = step * size / n;
    return end - step * size;
  }
  const Size per_epoch = (n + size - 1) / size;
  epoch_ = step / per_epoch;
  order_of(epoch_);
  const Size begin = step % per_epoch * size, count = std::min(size, n - begin);
  for (Size i = 0; i < count; ++i) rows_[std::size_t(i)] = mine[order_[std::size_t(begin + i)]];
  return count;
}

void Batches::gather(Size step, Frame& frame) {
  frame.batch = choose_rows(step);
  frame.step = Word(step);
  gather_inputs(frame);
  gather_targets(frame.batch);
}

void Batches::gather(const Size* rows, Size count, Frame& frame) {
  std::copy(rows, rows + count, rows_.begin());
  frame.batch = count;
  gather_inputs(frame);
}

// Torch's (channels, pixels) to ours (pixels, channels).
void Batches::gather_floats(Size row, Size next, float* to) const {
  const Shape& shape = program_.values().front();
  const float* inputs = static_cast<const float*>(examples_->inputs);
  const float* from = inputs + row * shape.size();
  if (shape.kind != Kind::kImage || shape.channels == 1)
    return copy_ahead(shape.size(), from, inputs + next * shape.size(), to);
  for (Size c = 0; c < shape.channels; ++c)
    for (Size p = 0; p < shape.rows; ++p) to[p * shape.channels + c] = from[c * shape.rows + p];
}

void Batches::gather_bytes(Size row, float* to) const {
  const Shape& shape = program_.values().front();
  const std::uint8_t* from = static_cast<const std::uint8_t*>(examples_->inputs) + row * shape.size();
  const Size channels = shape.kind == Kind::kImage ? shape.channels : 1, pixels = shape.size() / channels;
  for (Size c = 0; c < channels; ++c) {
    const float* value = examples_->byte_values.data() + c * 256;
    for (Size p = 0; p < pixels; ++p) to[p * channels + c] = value[from[c * pixels + p]];
  }
}

void Batches::gather_tokens(Size row, std::int32_t* to) const {
  const Size length = program_.values().front().rows;
  const Size* from = static_cast<const Size*>(examples_->inputs) + row * length;
  for (Size t = 0; t < length; ++t) {
    if (from[t] < 0 || from[t] >= program_.vocabulary())
      throw std::out_of_range("token " + std::to_string(from[t]) + " is not in the model's vocabulary of " +
                              std::to_string(program_.vocabulary()));
    to[t] = std::int32_t(from[t]);
  }
}

void Batches::gather_inputs(const Frame& frame) {
  const Slot& slot = frame.slots[0];
  for (Size e = 0; e < frame.batch; ++e) {
    const Size row = rows_[std::size_t(e)];
    if (row < 0 || row >= examples_->count)
      throw std::out_of_range("example row " + std::to_string(row) + " is not among the " +
                              std::to_string(examples_->count) + " examples");
    float* to = slot.data + e * slot.stride;
    if (examples_->input_kind == InputKind::kFloats)
      gather_floats(row, rows_[std::size_t(std::min(e + 1, frame.batch - 1))], to);
    if (examples_->input_kind == InputKind::kBytes) gather_bytes(row, to);
    if (examples_->input_kind == InputKind::kTokens)
      gather_tokens(row, tokens_.data() + e * program_.values().front().rows);
  }
}

void Batches::gather_targets(Size batch) {
  const Size size = examples_->target_size;
  for (Size e = 0; e < batch; ++e) {
    const Size row = rows_[std::size_t(e)];
    if (examples_->target_kind == TargetKind::kFloats)
      copy(size, static_cast<const float*>(examples_->targets) + row * size, targets_.data() + e * size);
    if (examples_->target_kind == TargetKind::kLabels) {
      const Size* from = static_cast<const Size*>(examples_->targets) + row * size;
      const Size classes = program_.values()[std::size_t(program_.output())].channels;
      for (Size t = 0; t < size; ++t) {
        if (from[t] >= classes || (from[t] < 0 && from[t] != -100))
          throw std::out_of_range("label " + std::to_string(from[t]) + " is not among the model's " +
                                  std::to_string(classes) + " classes");
        labels_[std::size_t(e * size + t)] = std::int32_t(from[t]);
      }
    }
  }
}

}  // namespace fastfed
