// The weighted sum of deltas in fixed lanes: bit-identical for any number of threads, in memory for a few.
//
// Clients are dealt to lanes, a lane is summed in order by one thread, and lanes are folded in a fixed tree. A lane is
// folded as soon as its neighbour is there, so that the sums alive at any time are about as many as threads. The last
// few are folded by all threads together, while the sum is written.
//
// Of several processes each sums some neighbouring lanes, and folds what it can: the roots of the largest subtrees that
// it has all lanes of. Whoever adds these up goes on in the same tree (fastfed/train/sharded.py).
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "engine/layers/row_groups.h"
#include "engine/program.h"
#include "kernels/aligned.h"

namespace fastfed {

// How a client moved the rows of the table: `touched` ones lie in x; on top of that come `pending` gradients times
// `alpha`, which also name rows that are still as they were (not `moved`).
struct RowMoves {
  const std::vector<std::int32_t>& touched;
  const std::uint8_t* moved;
  RowGroups* pending;  // null: none
  float alpha;
  float* workspace;  // room for a row
};

// A sum of weighted deltas. Where it `tracks`, only the touched rows of the table are held.
class DeltaSum {
 public:
  DeltaSum(Size d, SparseWeight table, bool tracks);

  bool tracks() const { return tracks_; }
  void clear();
  // Adds weight * (x - start), and brings x back to start, but for the rows of a tracked table, which are added as
  // `moves` says and left alone. On top come `others`, in the same pass; none where it tracks. Returns the sum of
  // (x - start)^2.
  double add(float weight, float* x, const float* start, const RowMoves& moves, int threads, const DeltaSums& others);
  void add(const DeltaSum& other);
  // The sum of what begins at `begin`, within a row if that is in a tracked table; null: nothing was added.
  const float* at(Size begin) const;

 private:
  template <class Work> void for_dense(Work work) const;
  double add_piece(Size begin, Size n, float weight, float* x, const float* start,
                   const std::vector<const float*>& others);
  double add_rows_of(float weight, const float* x, const float* start, const RowMoves& moves, double squares);
  bool first_touch(std::int32_t row);

  Size d_;
  SparseWeight table_;
  bool tracks_, fresh_ = true;
  AlignedArray<float> sum_;
  std::vector<bool> is_touched_;
  std::vector<std::int32_t> touched_;
};

// Lanes [begin, end) of all those of a round.
struct LaneRange {
  Size lanes, begin, end;
  bool is_part() const { return begin > 0 || end < lanes; }
};

class LaneTree {
 public:
  // The last `roots` sums of a whole round stay apart until `write`. `spare`: sums of an earlier round, to be used
  // again.
  LaneTree(LaneRange here, Size roots, Size d, SparseWeight table, bool tracks, DeltaSums spare);

  // How far a lane's sum has come: node `number` of the `count` of a level.
  struct Climb {
    int level;
    Size number, count;
    void rise() {
      ++level;
      count = (count + 1) / 2;
      number /= 2;
    }
  };
  Climb leaf(Size lane) const { return {0, lane, here_.lanes}; }

  bool tracks() const { return tracks_; }
  std::unique_ptr<DeltaSum> take();  // a cleared sum
  // The sums that wait for the one that has come so far, in the order in which they are added to it; whoever takes them
  // does so. It has come past them then.
  DeltaSums take_partners(Climb& at);
  void give_back(DeltaSums sums);
  void finish(Climb at, std::unique_ptr<DeltaSum> sum);
  // After every lane has finished: out (d,) = sum, with `tables` in torch's order; of a part, out (roots, d): the sums
  // that it cannot fold, by their lanes. What nothing was added to is 0; in a part -0, which changes nothing it is
  // added to.
  void write(const std::vector<SparseWeight>& tables, float* out, int threads) const;
  Size roots() const { return Size(finished_.size()); }
  DeltaSums spare();  // all sums, for a later round

 private:
  using Node = std::pair<int, Size>;  // level, number
  using Sums = std::vector<const DeltaSum*>;
  std::unique_ptr<DeltaSum> partner_of(Node node);
  bool is_here(Node node) const;
  bool climb(Climb& at, Node& partner) const;
  void write(const std::vector<SparseWeight>& tables, const Sums& sums, float nothing, float* out, int threads) const;

  LaneRange here_;
  Size roots_, d_;
  SparseWeight table_;
  bool tracks_;
  std::mutex mutex_;
  std::map<Node, std::unique_ptr<DeltaSum>> waiting_;
  std::map<Size, std::unique_ptr<DeltaSum>> finished_;  // by their first lanes
  DeltaSums idle_;
};

// One lane while its clients train. It has memory from its first delta on; the last client's is folded with what waits
// for the lane in the pass that adds it.
class Lane {
 public:
  Lane(LaneTree& tree, Size lane) : tree_(tree), at_(tree.leaf(lane)) {}

  // As DeltaSum::add; `is_last`: whether it is the lane's last delta.
  double add(float weight, float* x, const float* start, const RowMoves& moves, int threads, bool is_last);
  void finish();  // after the last client

 private:
  LaneTree& tree_;
  LaneTree::Climb at_;
  std::unique_ptr<DeltaSum> sum_;
};

}  // namespace fastfed
