// The gradients of a table's rows, of which a batch touches a few, some of them many times. What belongs to one row is
// summed up before it meets the row: plain SGD writes into the weights, and every small addition to a weight is
// rounded.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "engine/layers/layer.h"
#include "simd/loops.h"

namespace fastfed {

class RowGroups {
 public:
  // One per thread: its memory grows to the largest batch and stays.
  static RowGroups& of_this_thread() {
    thread_local RowGroups groups;
    return groups;
  }

  void start(Size rows) {
    if (Size(ends_.size()) < rows) ends_.resize(std::size_t(rows), Ends{kNone, kNone});
    for (Size row : touched_) ends_[std::size_t(row)] = {kNone, kNone};  // of a batch that failed
    touched_.clear();
    entries_.clear();
  }

  // Row `row` gets factor * gradient.
  void add(Size row, float factor, const float* gradient) {
    const std::int32_t entry = std::int32_t(entries_.size());
    entries_.push_back({gradient, factor, kNone});
    Ends& ends = ends_[std::size_t(row)];
    if (ends.first == kNone) {
      ends.first = entry;
      touched_.push_back(row);
    } else {
      entries_[std::size_t(ends.last)].next = entry;
    }
    ends.last = entry;
  }

  // The rows with gradients, in the order of their first; they stay until they are taken or the next start.
  const std::vector<Size>& touched() const { return touched_; }
  bool has(Size row) const { return ends_[std::size_t(row)].first != kNone; }

  // sum (width,) = the sum of a row's gradients, which are forgotten.
  void take(Size row, Size width, float* sum) {
    Ends& ends = ends_[std::size_t(row)];
    gradients_.clear();
    factors_.clear();
    for (std::int32_t e = ends.first; e != kNone; e = entries_[std::size_t(e)].next) {
      gradients_.push_back(entries_[std::size_t(e)].gradient);
      factors_.push_back(entries_[std::size_t(e)].factor);
    }
    std::fill(sum, sum + width, 0.0f);
    add_rows(width, Size(factors_.size()), gradients_.data(), factors_.data(), sum);
    ends = {kNone, kNone};
  }

  // Pours the sum of every row's gradients into the row of `table` (rows, width); `sum`: room for `width` numbers.
  void pour_into(const Sink& table, Size width, float* sum) {
    for (Size row : touched_) {
      take(row, width, sum);
      add_scaled(width, table.alpha, sum, table.to + row * width);
    }
  }

 private:
  static constexpr std::int32_t kNone = -1;
  struct Entry {
    const float* gradient;
    float factor;
    std::int32_t next;
  };
  struct Ends {
    std::int32_t first, last;
  };

  std::vector<Ends> ends_;  // by row
  std::vector<Entry> entries_;
  std::vector<Size> touched_;
  std::vector<const float*> gradients_;  // of the row at work
  std::vector<float> factors_;
};

}  // namespace fastfed
