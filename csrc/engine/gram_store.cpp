#include "engine/gram_store.h"

#include <algorithm>
#include <random>

#include "simd/loops.h"

namespace fastfed {
namespace {

constexpr Size kRoom = Size(1) << 26;  // numbers of all products: 256 MiB

}  // namespace

GramStore::GramStore(Size in) : factors_(std::size_t(in)), room_(kRoom) {
  std::mt19937 numbers;  // whichever: results do not depend on them
  for (std::uint32_t& factor : factors_) factor = std::uint32_t(numbers()) | 1;  // not 0
}

void GramStore::mark(Size n, const float* x, std::uint64_t* marks) const {
  const Size in = Size(factors_.size());
  for (Size i = 0; i < n; ++i) marks[i] = weighed_bits(in, x + i * in, factors_.data());
}

// Marks are sums already; an odd factor lets their order matter.
std::uint64_t GramStore::key_of(Size n, const std::uint64_t* marks) {
  std::uint64_t key = std::uint64_t(n);
  for (Size i = 0; i < n; ++i) key = key * 0x9E3779B97F4A7C15u + marks[i];
  return key;
}

const float* GramStore::find(Size n, const std::uint64_t* marks) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = kept_.find(key_of(n, marks));
  if (found == kept_.end()) return nullptr;
  const Kept& kept = found->second;
  const bool are_same = Size(kept.marks.size()) == n && std::equal(kept.marks.begin(), kept.marks.end(), marks);
  return are_same ? kept.products.data() : nullptr;
}

void GramStore::keep(Size n, const std::uint64_t* marks, const float* products) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (n * n > room_) return;
  const auto [place, is_new] = kept_.try_emplace(key_of(n, marks));
  if (!is_new) return;  // another thread had the same examples; or others have this key, once in 2^64
  room_ -= n * n;
  place->second.marks.assign(marks, marks + n);
  place->second.products = AlignedArray<float>(n * n);
  copy(n * n, products, place->second.products.data());
}

}  // namespace fastfed
