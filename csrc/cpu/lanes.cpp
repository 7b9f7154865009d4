// Sums of deltas, and the tree that folds them.
#include "cpu/lanes.h"

#include <cstring>

#include "cpu/clones.h"
#include "cpu/loops.h"

namespace fastfed {
namespace {

constexpr int kSquareLanes = 16;

// sum = weight * (x - start), added to what is there if Add; x = start. Returns the sum of (x - start)^2, in fixed
// lanes.
template <bool Add>
FF_CLONES double take_delta(Size n, float weight, float* __restrict x, const float* __restrict start,
                            float* __restrict sum) {
  double lanes[kSquareLanes] = {};
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
  double squares = 0;
  for (double lane : lanes) squares += lane;
  return squares;
}

FF_CLONES void scaled(Size n, float scale, const float* __restrict sum, float* __restrict out) {
  for (Size i = 0; i < n; ++i) out[i] = scale * sum[i];
}

}  // namespace

DeltaSum::DeltaSum(Size d, Program::SparseRange sparse, bool tracks)
    : d_(d), sparse_(sparse), tracks_(tracks), sum_(d), is_touched_(std::size_t(tracks ? sparse.rows : 0), false) {}

void DeltaSum::clear() {
  fresh_ = true;
  for (std::int32_t row : touched_) is_touched_[std::size_t(row)] = false;
  touched_.clear();
}

// work(begin, n) for what is not the tracked sparse range.
template <class Work> void DeltaSum::for_dense(Work work) const {
  if (!tracks_) return work(Size(0), d_);
  work(Size(0), sparse_.offset);
  work(sparse_.end(), d_ - sparse_.end());
}

bool DeltaSum::first_touch(std::int32_t row) {
  if (is_touched_[std::size_t(row)]) return false;
  is_touched_[std::size_t(row)] = true;
  touched_.push_back(row);
  return true;
}

double DeltaSum::add(float weight, float* x, const float* start, const std::vector<std::int32_t>& touched) {
  const auto take = [&](bool is_first, Size begin, Size n) {
    return (is_first ? take_delta<false> : take_delta<true>)(n, weight, x + begin, start + begin, sum_.data() + begin);
  };
  double squares = 0;
  for_dense([&](Size begin, Size n) { squares += take(fresh_, begin, n); });
  if (tracks_)
    for (std::int32_t row : touched)
      squares += take(first_touch(row), sparse_.offset + row * sparse_.width, sparse_.width);
  fresh_ = false;
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
    const Size begin = sparse_.offset + row * sparse_.width;
    if (first_touch(row))
      std::memcpy(sum_.data() + begin, other.sum_.data() + begin, std::size_t(sparse_.width) * sizeof(float));
    else
      add_to(sparse_.width, other.sum_.data() + begin, sum_.data() + begin);
  }
  fresh_ = false;
}

void DeltaSum::write(float scale, float* out) const {
  if (fresh_ || tracks_) std::fill(out, out + d_, 0.0f);
  if (fresh_) return;
  for_dense([&](Size begin, Size n) { scaled(n, scale, sum_.data() + begin, out + begin); });
  for (std::int32_t row : touched_) {
    const Size begin = sparse_.offset + row * sparse_.width;
    scaled(sparse_.width, scale, sum_.data() + begin, out + begin);
  }
}

LaneTree::LaneTree(Size lanes, Size d, Program::SparseRange sparse, bool tracks,
                   std::vector<std::unique_ptr<DeltaSum>> spare)
    : lanes_(lanes), d_(d), sparse_(sparse), tracks_(tracks), idle_(std::move(spare)) {}

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
  return std::make_unique<DeltaSum>(d_, sparse_, tracks_);
}

// The sum that waits at this node, if it is there.
std::unique_ptr<DeltaSum> LaneTree::partner_of(Node node) {
  const auto found = waiting_.find(node);
  if (found == waiting_.end()) return nullptr;
  auto partner = std::move(found->second);
  waiting_.erase(found);
  return partner;
}

// Climbs the tree: a node's sum is that of its two children, added by whoever comes last (a + b is b + a to the bit). A
// node without a right child is its left child.
void LaneTree::finish(Size lane, std::unique_ptr<DeltaSum> sum) {
  Size number = lane, width = lanes_;
  for (int level = 0; width > 1; ++level, width = (width + 1) / 2, number /= 2) {
    const bool is_left = number % 2 == 0;
    if (is_left && number + 1 == width) continue;
    std::unique_ptr<DeltaSum> partner;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      partner = partner_of({level, is_left ? number + 1 : number - 1});
      if (!partner) {
        waiting_[{level, number}] = std::move(sum);
        return;
      }
    }
    sum->add(*partner);
    const std::lock_guard<std::mutex> lock(mutex_);
    idle_.push_back(std::move(partner));
  }
  const std::lock_guard<std::mutex> lock(mutex_);
  waiting_[{-1, 0}] = std::move(sum);
}

std::unique_ptr<DeltaSum> LaneTree::total() { return partner_of({-1, 0}); }

}  // namespace fastfed
