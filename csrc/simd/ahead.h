// Memory that a thread will read soon, fetched a little at a time while it multiplies: all at once, it would wait for
// it.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

namespace fastfed {

class Ahead {
 public:
  void forget() {
    spans_.clear();
    next_ = 0;
  }

  void want(const void* from, std::int64_t bytes) { spans_.emplace_back(static_cast<const char*>(from), bytes); }

  // Between two tiles of a product, which take long enough for so many lines to come.
  void fetch() {
    for (std::int64_t left = kAtOnce; left > 0 && next_ < spans_.size();) {
      auto& [from, bytes] = spans_[next_];
      for (; left > 0 && bytes > 0; --left, from += kLine, bytes -= kLine) __builtin_prefetch(from);
      if (bytes <= 0) ++next_;
    }
  }

 private:
  static constexpr std::int64_t kLine = 64, kAtOnce = 32;  // bytes of a line; lines

  std::vector<std::pair<const char*, std::int64_t>> spans_;
  std::size_t next_ = 0;
};

}  // namespace fastfed
