// Rows of the example store in the order of a client's shuffles, gathered into the layout of the first value.
#include "engine/batches.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <stdexcept>
#include <string>
#include <utility>

#include "kernels/random.h"
#include "simd/loops.h"

namespace fastfed {
namespace {

// Part of a stored image: `channels` planes, `plane` bytes apart, of which lines `pitch` bytes apart are seen.
struct Crop {
  const std::uint8_t* corner;
  Size channels, height, width, plane, pitch;
  const std::uint8_t* line(Size channel, Size y) const { return corner + channel * plane + y * pitch; }
};

// What the crop's bytes stand for when it is standardised: (n b - sum) / sqrt(max(n squares - sum^2, n)). Only root and
// quotient are rounded.
std::array<float, 256> standardised_bytes(const Crop& crop) {
  Size sum = 0, squares = 0;
  for (Size c = 0; c < crop.channels; ++c)
    for (Size y = 0; y < crop.height; ++y) {
      const std::uint8_t* line = crop.line(c, y);
      for (Size x = 0; x < crop.width; ++x) {
        sum += line[x];
        squares += Size(line[x]) * line[x];
      }
    }
  const Size n = crop.channels * crop.height * crop.width;
  const float root = float(std::sqrt(double(std::max(n * squares - sum * sum, n))));
  std::array<float, 256> values;
  for (Size b = 0; b < 256; ++b) values[std::size_t(b)] = float(n * b - sum) / root;
  return values;
}

// One of the whole numbers below `count`, by a random word.
Size below(Size count, Word word) { return Size((Wide(word) * Wide(count)) >> 32); }

}  // namespace

Batches::Batches(const Program& program, Size batch)
    : program_(program), batch_(batch), rows_(static_cast<std::size_t>(batch)), places_(rows_) {
  const Shape& input = program.values().front();
  if (input.kind == Kind::kTokens) tokens_.resize(std::size_t(batch * input.rows));
}

void Batches::prepare(const Examples& examples, Frame& frame) {
  examples_ = &examples;
  frame.ahead = nullptr;
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
  for (Size c = 0; c < round.clients; ++c) most = std::max(most, examples_of(c));
  for (Order* order : {&order_, &coming_}) {
    if (Size(order->places.size()) < most) order->places.resize(std::size_t(most));
    order->position = -1;  // of another round
  }
  ahead_.forget();
  if (frame.threads == 1) frame.ahead = &ahead_;
}

void Batches::begin(Size position) { position_ = position; }

void Batches::shuffle(Order& order, Size position, Size epoch) const {
  const Stream stream{round_->shuffle.key0, round_->shuffle.key1, Word(epoch), round_->round};
  const Size id = round_->ids[position];
  permutation(1, examples_of(position), stream, &id, order.places.data(), 1);
  order.position = position;
  order.epoch = epoch;
}

const Size* Batches::order_of(Size epoch) {
  if (coming_.is_of(position_, epoch)) std::swap(order_, coming_);
  if (!order_.is_of(position_, epoch)) shuffle(order_, position_, epoch);
  return order_.places.data();
}

Batches::Stretch Batches::stretch_of(Size position, Size step) const {
  const Size n = examples_of(position), size = round_->batch_size, per_epoch = (n + size - 1) / size;
  const Size begin = step % per_epoch * size;
  return {step / per_epoch, begin, std::min(size, n - begin)};
}

// Bytes of an example in the store; 0: they are not all in one place.
Size Batches::stored_bytes() const {
  const Shape& shape = program_.values().front();
  const Augment& augment = examples_->augment;
  if (examples_->input_kind == InputKind::kFloats) return shape.size() * Size(sizeof(float));
  if (examples_->input_kind == InputKind::kTokens) return shape.rows * Size(sizeof(Size));
  if (examples_->input_kind == InputKind::kSparse) return 0;
  return augment.asked() ? shape.channels * augment.height * augment.width : shape.size();
}

void Batches::want(const Size* rows, const Size* places, Size count) {
  constexpr Size kMost = 1 << 18;  // bytes: a part of a core's second cache
  const Size bytes = stored_bytes();
  const char* inputs = static_cast<const char*>(examples_->inputs);
  for (Size e = 0; e < std::min(count, kMost / bytes); ++e)
    ahead_.want(inputs + rows[places ? places[e] : e] * bytes, bytes);
}

void Batches::look_ahead(Size position) {
  ahead_.forget();
  if (stored_bytes() > 0) want(round_->rows + round_->offsets[position], nullptr, examples_of(position));
}

void Batches::look_ahead(Size position, Size step) {
  ahead_.forget();
  if (round_->seen || stored_bytes() == 0 || examples_of(position) == 0) return;
  const Stretch batch = stretch_of(position, step);
  const bool has_order = order_.is_of(position, batch.epoch);
  if (!has_order && !coming_.is_of(position, batch.epoch)) shuffle(coming_, position, batch.epoch);
  want(round_->rows + round_->offsets[position], (has_order ? order_ : coming_).places.data() + batch.begin,
       batch.count);
}

// Fills places_ with the examples of local step `step` (from 0); their number.
Size Batches::choose(Size step) {
  const Size n = client_examples(), size = round_->batch_size;
  if (round_->seen) {
    const Size end = std::min((step + 1) * size, round_->seen[position_]);
    for (Size p = step * size; p < end; ++p) {
      const Size which = round_->drawn ? below(n, words_at(round_->draw, p).w[0]) : order_of(p / n)[p % n];
      places_[std::size_t(p - step * size)] = which;
    }
    epoch_ = step * size / n;
    first_ = step * size;
    return end - step * size;
  }
  const Stretch batch = stretch_of(position_, step);
  epoch_ = batch.epoch;
  std::copy_n(order_of(epoch_) + batch.begin, batch.count, places_.begin());
  first_ = epoch_ * n + batch.begin;
  return batch.count;
}

void Batches::gather(Size step, Frame& frame, bool without_inputs) {
  frame.batch = choose(step);
  frame.step = Word(step);
  for (Size e = 0; e < frame.batch; ++e) rows_[std::size_t(e)] = client_rows()[places_[std::size_t(e)]];
  if (!without_inputs) gather_inputs(frame, true);
  gather_targets(frame.batch);
}

void Batches::gather(const Size* rows, Size count, Frame& frame) {
  std::copy(rows, rows + count, rows_.begin());
  frame.batch = count;
  gather_inputs(frame, false);
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

// A function of (seed, round, client, stream position) alone: no batch size, thread or order of clients changes it.
Words Batches::words_at(const StreamKey& key, Size stream_position) const {
  const Words counter{
      {Word(stream_position), Word(stream_position >> 32), Word(round_->ids[position_]), round_->round}};
  return philox(counter, key.key0, key.key1);
}

Batches::View Batches::view_at(Size stream_position) const {
  const Augment& augment = examples_->augment;
  const Shape& shape = program_.values().front();
  const Words drawn = words_at(round_->augment, stream_position);
  return {below(augment.height - shape.height + 1, drawn.w[0]), below(augment.width - shape.width + 1, drawn.w[1]),
          augment.flip && drawn.w[2] >> 31 == 1};
}

Batches::View Batches::middle_view() const {
  const Shape& shape = program_.values().front();
  return {(examples_->augment.height - shape.height) / 2, (examples_->augment.width - shape.width) / 2, false};
}

void Batches::gather_augmented(Size row, const View& view, float* to) const {
  const Augment& augment = examples_->augment;
  const Shape& shape = program_.values().front();
  const Size plane = augment.height * augment.width;
  const std::uint8_t* image = static_cast<const std::uint8_t*>(examples_->inputs) + row * shape.channels * plane;
  const Crop crop{
      image + view.top * augment.width + view.left, shape.channels, shape.height, shape.width, plane, augment.width};
  std::array<float, 256> own;
  if (augment.standardise) own = standardised_bytes(crop);
  for (Size c = 0; c < crop.channels; ++c) {
    const float* value = augment.standardise ? own.data() : examples_->byte_values.data() + c * 256;
    for (Size y = 0; y < crop.height; ++y) {
      const std::uint8_t* line = crop.line(c, y);
      float* pixels = to + y * crop.width * crop.channels + c;
      for (Size x = 0; x < crop.width; ++x)
        pixels[x * crop.channels] = value[line[view.flipped ? crop.width - 1 - x : x]];
    }
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

void Batches::gather_inputs(const Frame& frame, bool training) {
  const Slot& slot = frame.slots[0];
  for (Size e = 0; e < frame.batch; ++e) {
    const Size row = rows_[std::size_t(e)];
    if (row < 0 || row >= examples_->count)
      throw std::out_of_range("example row " + std::to_string(row) + " is not among the " +
                              std::to_string(examples_->count) + " examples");
    float* to = slot.data + e * slot.stride;
    if (examples_->input_kind == InputKind::kFloats)
      gather_floats(row, rows_[std::size_t(std::min(e + 1, frame.batch - 1))], to);
    if (examples_->input_kind == InputKind::kBytes && examples_->augment.asked())
      gather_augmented(row, training ? view_at(first_ + e) : middle_view(), to);
    else if (examples_->input_kind == InputKind::kBytes)
      gather_bytes(row, to);
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
