// Sums of deltas, and the tree that folds them.
#include "engine/lanes.h"

#include <cstring>

#include "engine/tables.h"
#include "kernels/parallel.h"
#include "simd/clones.h"
#include "simd/loops.h"
#include "simd/square_lanes.h"

namespace fastfed {
namespace {

// sum = weight * (x - start), added to what is there if Add; x = start. The squares of x - start go to fixed lanes.
template <bool Add>
FF_CLONES void take_delta(Size n, float weight, float* __restrict x, const float* __restrict start,
                          float* __restrict sum, double (&squares)[kSquareLanes]) {
  double lanes[kSquareLanes];
  for (int l = 0; l < kSquareLanes; ++l) lanes[l] = squares[l];
  Size i = 0;
  for (; i + kSquareLanes <= n; i += kSquareLanes) {
#pragma GCC unroll 16
    for (int l = 0; l < kSquareLanes; ++l) {
      const float delta = x[i + l] - start[i + l];
      sum[i + l] = Add ? sum[i + l] + weight * delta : weight * delta;
      x[i + l] = start[i + l];
      lanes[l] += double(delta) * double(delta);
    }
  }
  for (int l = 0; i + l < n; ++l) {
    const float delta = x[i + l] - start[i + l];
    sum[i + l] = Add ? sum[i + l] + weight * delta : weight * delta;
    x[i + l] = start[i + l];
    lanes[l] += double(delta) * double(delta);
  }
  for (int l = 0; l < kSquareLanes; ++l) squares[l] = lanes[l];
}

// Likewise for a row of the table that ends at from + alpha * gradient, or at `from` where there is no gradient.
template <bool Add>
FF_CLONES double take_row(Size n, float weight, const float* __restrict from, float alpha,
                          const float* __restrict gradient, const float* __restrict start, float* __restrict sum) {
  double lanes[kSquareLanes] = {};
  Size i = 0;
  for (; i + kSquareLanes <= n; i += kSquareLanes) {
#pragma GCC unroll 16
    for (int l = 0; l < kSquareLanes; ++l) {
      const float delta = (from[i + l] + alpha * gradient[i + l]) - start[i + l];
      sum[i + l] = Add ? sum[i + l] + weight * delta : weight * delta;
      lanes[l] += double(delta) * double(delta);
    }
  }
  for (int l = 0; i + l < n; ++l) {
    const float delta = (from[i + l] + alpha * gradient[i + l]) - start[i + l];
    sum[i + l] = Add ? sum[i + l] + weight * delta : weight * delta;
    lanes[l] += double(delta) * double(delta);
  }
  return folded(lanes);
}

FF_CLONES void added(Size n, const float* __restrict a, const float* __restrict b, float* __restrict out) {
  for (Size i = 0; i < n; ++i) out[i] = a[i] + b[i];
}

// With `by` 0 a whole sum has no -0: those that parts leave where they have nothing cannot show. With -0 it is a copy.
FF_CLONES void increased(Size n, const float* __restrict a, float by, float* __restrict out) {
  for (Size i = 0; i < n; ++i) out[i] = a[i] + by;
}

// The roots' share of n numbers, folded as the tree goes on; `parts` are null where a root has nothing there. `room`:
// n numbers for every one of them.
const float* fold(Size n, std::vector<const float*>& parts, float* room) {
  for (std::size_t count = parts.size(); count > 1; count = (count + 1) / 2)
    for (std::size_t i = 0; 2 * i < count; ++i) {
      const float *a = parts[2 * i], *b = 2 * i + 1 < count ? parts[2 * i + 1] : nullptr;
      parts[i] = a ? a : b;
      if (!a || !b) continue;
      added(n, a, b, room);
      parts[i] = std::exchange(room, room + n);
    }
  return parts[0];
}

}  // namespace

DeltaSum::DeltaSum(Size d, SparseWeight table, bool tracks)
    : d_(d), table_(table), tracks_(tracks), sum_(d), is_touched_(std::size_t(tracks ? table.rows : 0), false) {}

void DeltaSum::clear() {
  fresh_ = true;
  for (std::int32_t row : touched_) is_touched_[std::size_t(row)] = false;
  touched_.clear();
}

// work(begin, n) for what is not the tracked table.
template <class Work> void DeltaSum::for_dense(Work work) const {
  if (!tracks_) return work(Size(0), d_);
  work(Size(0), table_.offset);
  work(table_.end(), d_ - table_.end());
}

bool DeltaSum::first_touch(std::int32_t row) {
  if (is_touched_[std::size_t(row)]) return false;
  is_touched_[std::size_t(row)] = true;
  touched_.push_back(row);
  return true;
}

double DeltaSum::add(float weight, float* x, const float* start, const RowMoves& moves, int threads,
                     const DeltaSums& others) {
  constexpr Size kPiece = Size(1) << 20;  // what a thread takes at a time of a large model
  std::vector<const float*> sums;
  for (const auto& other : others)
    if (!other->fresh_) sums.push_back(other->sum_.data());
  double squares = 0;
  for_dense([&](Size begin, Size n) {
    std::vector<double> of_pieces(std::size_t((n + kPiece - 1) / kPiece));
    for_tasks(Size(of_pieces.size()), threads, [&](Size piece, int) {
      const Size at = begin + piece * kPiece;
      of_pieces[std::size_t(piece)] = add_piece(at, std::min(kPiece, begin + n - at), weight, x, start, sums);
    });
    for (double part : of_pieces) squares += part;
  });
  if (tracks_) squares = add_rows_of(weight, x, start, moves, squares);
  fresh_ = false;
  return squares;
}

// A few kilobytes of the delta at a time, and the other sums on top while these are near.
double DeltaSum::add_piece(Size begin, Size n, float weight, float* x, const float* start,
                           const std::vector<const float*>& others) {
  constexpr Size kNear = 2048;
  static_assert(kNear % kSquareLanes == 0, "an element keeps its lane");
  const auto take = fresh_ ? take_delta<false> : take_delta<true>;
  const Size most = others.empty() ? n : kNear;
  double lanes[kSquareLanes] = {};
  for (Size at = begin; at < begin + n; at += most) {
    const Size count = std::min(most, begin + n - at);
    take(count, weight, x + at, start + at, sum_.data() + at, lanes);
    for (const float* other : others) add_to(count, other + at, sum_.data() + at);
  }
  return folded(lanes);
}

// Returns `squares` with those of the rows, added one by one as Worker::delta_squares does.
double DeltaSum::add_rows_of(float weight, const float* x, const float* start, const RowMoves& moves, double squares) {
  const Size channels = table_.channels;
  const auto take = [&](Size row, const float* from, float alpha) {
    const Size begin = table_.offset + row * channels;
    return (first_touch(std::int32_t(row)) ? take_row<false> : take_row<true>)(channels, weight, from + begin, alpha,
                                                                               moves.workspace, start + begin,
                                                                               sum_.data() + begin);
  };
  for (std::int32_t row : moves.touched) {
    const bool goes_on = moves.pending && moves.pending->has(row);
    if (goes_on)
      moves.pending->take(row, channels, moves.workspace);
    else
      std::fill(moves.workspace, moves.workspace + channels, 0.0f);
    squares += take(row, x, goes_on ? moves.alpha : 0.0f);
  }
  if (!moves.pending) return squares;
  for (Size row : moves.pending->touched()) {
    if (moves.moved[row]) continue;
    moves.pending->take(row, channels, moves.workspace);
    squares += take(row, start, moves.alpha);
  }
  return squares;
}

void DeltaSum::add(const DeltaSum& other) {
  if (other.fresh_) return;
  for_dense([&](Size begin, Size n) {
    if (fresh_)
      std::memcpy(sum_.data() + begin, other.sum_.data() + begin, std::size_t(n) * sizeof(float));
    else
      add_to(n, other.sum_.data() + begin, sum_.data() + begin);
  });
  for (std::int32_t row : other.touched_) {
    const Size begin = table_.offset + row * table_.channels;
    if (first_touch(row))
      std::memcpy(sum_.data() + begin, other.sum_.data() + begin, std::size_t(table_.channels) * sizeof(float));
    else
      add_to(table_.channels, other.sum_.data() + begin, sum_.data() + begin);
  }
  fresh_ = false;
}

const float* DeltaSum::at(Size begin) const {
  const bool in_table = tracks_ && begin >= table_.offset && begin < table_.end();
  const bool held = in_table ? is_touched_[std::size_t((begin - table_.offset) / table_.channels)] : !fresh_;
  return held ? sum_.data() + begin : nullptr;
}

LaneTree::LaneTree(LaneRange here, Size roots, Size d, SparseWeight table, bool tracks, DeltaSums spare)
    : here_(here), roots_(here.is_part() ? 1 : roots), d_(d), table_(table), tracks_(tracks), idle_(std::move(spare)) {}

std::unique_ptr<DeltaSum> LaneTree::take() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!idle_.empty()) {
      auto sum = std::move(idle_.back());
      idle_.pop_back();
      sum->clear();
      return sum;
    }
  }
  return std::make_unique<DeltaSum>(d_, table_, tracks_);
}

void LaneTree::give_back(DeltaSums sums) {
  const std::lock_guard<std::mutex> lock(mutex_);
  for (auto& sum : sums) idle_.push_back(std::move(sum));
}

// The sum that waits at this node, if it is there.
std::unique_ptr<DeltaSum> LaneTree::partner_of(Node node) {
  const auto found = waiting_.find(node);
  if (found == waiting_.end()) return nullptr;
  auto partner = std::move(found->second);
  waiting_.erase(found);
  return partner;
}

// Whether all lanes below a node are among those that are summed here.
bool LaneTree::is_here(Node node) const {
  const Size first = node.second << node.first, end = (node.second + 1) << node.first;
  return first >= here_.begin && std::min(end, here_.lanes) <= here_.end;
}

// Up to the next node that has a partner; false if its sum is folded with nobody here. A node without a right child is
// its left child.
bool LaneTree::climb(Climb& at, Node& partner) const {
  for (; at.count > roots_; at.rise()) {
    const bool is_left = at.number % 2 == 0;
    if (is_left && at.number + 1 == at.count) continue;
    partner = {at.level, is_left ? at.number + 1 : at.number - 1};
    return is_here(partner);
  }
  return false;
}

DeltaSums LaneTree::take_partners(Climb& at) {
  DeltaSums partners;
  const std::lock_guard<std::mutex> lock(mutex_);
  for (Node node; climb(at, node); at.rise()) {
    auto partner = partner_of(node);
    if (!partner) break;
    partners.push_back(std::move(partner));
  }
  return partners;
}

// A node's sum is that of its two children, added by whoever comes last (a + b is b + a to the bit).
void LaneTree::finish(Climb at, std::unique_ptr<DeltaSum> sum) {
  for (Node node; climb(at, node); at.rise()) {
    std::unique_ptr<DeltaSum> partner;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      partner = partner_of(node);
      if (!partner) {
        waiting_[{at.level, at.number}] = std::move(sum);
        return;
      }
    }
    sum->add(*partner);
    const std::lock_guard<std::mutex> lock(mutex_);
    idle_.push_back(std::move(partner));
  }
  const std::lock_guard<std::mutex> lock(mutex_);
  finished_[at.number << at.level] = std::move(sum);
}

double Lane::add(float weight, float* x, const float* start, const RowMoves& moves, int threads, bool is_last) {
  DeltaSums partners;
  if (is_last && !tree_.tracks()) partners = tree_.take_partners(at_);
  if (!sum_ && !partners.empty()) {  // a + b is b + a to the bit
    sum_ = std::move(partners.front());
    partners.erase(partners.begin());
  }
  if (!sum_) sum_ = tree_.take();
  const double squares = sum_->add(weight, x, start, moves, threads, partners);
  tree_.give_back(std::move(partners));
  return squares;
}

void Lane::finish() {
  if (!sum_) sum_ = tree_.take();
  tree_.finish(at_, std::move(sum_));
}

void LaneTree::write(const std::vector<SparseWeight>& tables, float* out, int threads) const {
  Sums sums;
  for (const auto& [lane, sum] : finished_) sums.push_back(sum.get());
  if (!here_.is_part()) return write(tables, sums, 0.0f, out, threads);
  for (std::size_t root = 0; root < sums.size(); ++root)
    write(tables, {sums[root]}, -0.0f, out + Size(root) * d_, threads);
}

// out (d,) = the sums folded, and `nothing` where they have none.
void LaneTree::write(const std::vector<SparseWeight>& tables, const Sums& sums, float nothing, float* out,
                     int threads) const {
  const auto write_part = [&](Size begin, Size n, float* room, float* to) {
    std::vector<const float*> parts;
    for (const DeltaSum* sum : sums) parts.push_back(sum->at(begin));
    const float* sum = fold(n, parts, room);
    if (sum)
      increased(n, sum, nothing, to);
    else
      std::fill(to, to + n, nothing);
  };
  const std::size_t roots = sums.size();
  for_gaps(tables, d_, [&](Size begin, Size n) {
    for_tasks((n + kSpan - 1) / kSpan, threads, [&](Size task, int) {
      std::vector<float> room(roots * std::size_t(kSpan));
      const Size at = task * kSpan;
      write_part(begin + at, std::min(kSpan, n - at), room.data(), out + begin + at);
    });
  });
  for (const SparseWeight& table : tables)
    for_tasks((table.rows + kTransposedRows - 1) / kTransposedRows, threads, [&](Size task, int) {
      std::vector<float> room(roots * std::size_t(table.channels)), rows(std::size_t(kTransposedRows * table.channels));
      const Size first = task * kTransposedRows, count = std::min(kTransposedRows, table.rows - first);
      for (Size r = 0; r < count; ++r)
        write_part(table.offset + (first + r) * table.channels, table.channels, room.data(),
                   rows.data() + r * table.channels);
      rows_to_torch_order(table, first, count, rows.data(), out);
    });
}

DeltaSums LaneTree::spare() {
  for (auto& [number, sum] : finished_) idle_.push_back(std::move(sum));
  finished_.clear();
  return std::move(idle_);
}

}  // namespace fastfed
