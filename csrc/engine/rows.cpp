// Rows that come from the start model when they move for the first time, and sums of gradients that wait beside them.
#include "engine/rows.h"

#include <cmath>

#include "simd/loops.h"

namespace fastfed {
namespace {

// How far rows may go from a moderate start, so that they are moderate enough without a look at them.
constexpr double kFarthestMove = 1e37;

}  // namespace

TrackedRows::TrackedRows(const Program& program)
    : table_(program.table()),
      table_output_(program.table_output()),
      d_(program.d()),
      moved_(std::size_t(program.table().rows), 0) {}

void TrackedRows::prepare(bool tracks, Frame& frame) {
  forget();  // what a round that failed has left
  tracks_ = tracks;
  frame.moved = tracks ? moved_.data() : nullptr;
  frame.groups = &groups_;
}

void TrackedRows::begin() {
  groups_.start(table_.rows);
  pending_ = false;
  farthest_move_ = 0;
}

void TrackedRows::forget() {
  for (std::int32_t row : touched_) moved_[std::size_t(row)] = 0;
  touched_.clear();
}

void TrackedRows::step(const Frame& frame, bool may_wait, float* x) {
  if (!tracks_) return;
  farthest_move_ += std::fabs(double(frame.lr)) * gradient_bound(frame);
  pending_ = true;
  if (!(may_wait && farthest_move_ < kFarthestMove)) apply(frame, x);
}

// What no number of a row's gradient exceeds: the largest of the table's output, times all inputs of the batch.
double TrackedRows::gradient_bound(const Frame& frame) const {
  double inputs = 0;
  for (Size e = 0; e < frame.batch; ++e) {
    const Size* starts = frame.sparse.starts + frame.rows[e];
    for (Size i = starts[0]; i < starts[1]; ++i) inputs += std::fabs(double(frame.sparse.values[i]));
  }
  const Slot& slot = frame.slots[table_output_];
  return inputs * double(largest(frame.batch * slot.stride, slot.grad));
}

void TrackedRows::apply(const Frame& frame, float* x) {
  for (Size row : groups_.touched()) {
    const Size begin = table_.offset + row * table_.channels;
    groups_.take(row, table_.channels, frame.workspace);
    if (!moved_[std::size_t(row)]) {
      moved_[std::size_t(row)] = 1;
      touched_.push_back(std::int32_t(row));
      copy(table_.channels, frame.start + begin, x + begin);
    }
    add_scaled(table_.channels, -frame.lr, frame.workspace, x + begin);
  }
  pending_ = false;
}

RowMoves TrackedRows::moves(const Frame& frame) {
  return {touched_, moved_.data(), pending_ ? &groups_ : nullptr, -frame.lr, frame.workspace};
}

}  // namespace fastfed
