// The weighted sum of deltas in fixed lanes: bit-identical for any number of threads, in memory for a few.
//
// Clients are dealt to lanes, a lane is summed in order by one thread, and lanes are folded in a fixed tree. A lane is
// folded as soon as its neighbour is there, so that the sums alive at any time are about as many as threads.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "cpu/aligned.h"
#include "cpu/program.h"

namespace fastfed {

// A sum of weighted deltas. Of the sparse range only the touched rows are held; `tracks` says whether it is used.
class DeltaSum {
 public:
  DeltaSum(Size d, Program::SparseRange sparse, bool tracks);

  bool tracks() const { return tracks_; }
  void clear();
  // Adds weight * (x - start), and brings x back to start. `touched`: the rows of the sparse range that moved. Returns
  // the sum of (x - start)^2.
  double add(float weight, float* x, const float* start, const std::vector<std::int32_t>& touched);
  void add(const DeltaSum& other);
  void write(float scale, float* out) const;

 private:
  template <class Work> void for_dense(Work work) const;
  bool first_touch(std::int32_t row);

  Size d_;
  Program::SparseRange sparse_;
  bool tracks_, fresh_ = true;
  AlignedArray<float> sum_;
  std::vector<bool> is_touched_;
  std::vector<std::int32_t> touched_;
};

class LaneTree {
 public:
  // `spare`: sums of an earlier round, to be used again.
  LaneTree(Size lanes, Size d, Program::SparseRange sparse, bool tracks, std::vector<std::unique_ptr<DeltaSum>> spare);

  std::unique_ptr<DeltaSum> take();  // a cleared sum
  void finish(Size lane, std::unique_ptr<DeltaSum> sum);
  std::unique_ptr<DeltaSum> total();                                           // after every lane has finished
  std::vector<std::unique_ptr<DeltaSum>> spare() { return std::move(idle_); }  // likewise

 private:
  using Node = std::pair<int, Size>;  // level, number
  std::unique_ptr<DeltaSum> partner_of(Node node);

  Size lanes_, d_;
  Program::SparseRange sparse_;
  bool tracks_;
  std::mutex mutex_;
  std::map<Node, std::unique_ptr<DeltaSum>> waiting_;
  std::vector<std::unique_ptr<DeltaSum>> idle_;
};

}  // namespace fastfed
