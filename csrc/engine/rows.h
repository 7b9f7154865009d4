// The rows of the program's table that a client moves, where a round tracks them: nobody touches the others.
#pragma once

#include <vector>

#include "engine/lanes.h"
#include "engine/layers/row_groups.h"
#include "engine/program.h"

namespace fastfed {

class TrackedRows {
 public:
  explicit TrackedRows(const Program& program);

  // Before a round that tracks rows or does not: the frame is told where layers find flags and leave gradients.
  void prepare(bool tracks, Frame& frame);
  void begin();   // before a client
  void forget();  // after it: no row is moved any more

  // After a step of plain SGD that left the rows' gradients beside. The last step's may wait there until the delta is
  // taken; others move x now.
  void step(const Frame& frame, bool may_wait, float* x);
  // Moves x along the gradients of the batch at hand; rows that move for the first time come from the frame's start.
  void apply(const Frame& frame, float* x);

  // Whether the last step's gradients still wait. The rows are moderate then: none went far from its start.
  bool pending() const { return pending_; }
  RowMoves moves(const Frame& frame);

  // work(begin, n) for every run of x that may differ from start.
  template <class Work> void for_moved(Work work) const {
    for_dense(work);
    for (std::int32_t row : touched_) work(table_.offset + row * table_.channels, table_.channels);
  }
  // Of that what is not in the tracked table.
  template <class Work> void for_dense(Work work) const {
    if (!tracks_) return work(Size(0), d_);
    work(Size(0), table_.offset);
    work(table_.end(), d_ - table_.end());
  }

 private:
  double gradient_bound(const Frame& frame) const;

  SparseWeight table_;
  int table_output_;  // the value that its layer makes
  Size d_;
  bool tracks_ = false;
  RowGroups groups_;                   // gradients of the batch at hand
  std::vector<std::int32_t> touched_;  // rows that x holds
  std::vector<std::uint8_t> moved_;    // by row: whether it is one of them
  bool pending_ = false;               // the last step's gradients are still in groups_
  double farthest_move_ = 0;           // no number of a row went farther from start
};

}  // namespace fastfed
