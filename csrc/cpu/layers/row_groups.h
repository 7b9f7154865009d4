// The gradients of a table's rows, of which a batch touches a few, some of them many times. What belongs to one row is
// summed up before it meets the row: plain SGD writes into the weights, and every small addition to a weight is
// rounded.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "cpu/layers/layer.h"
#include "cpu/loops.h"

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

  // Pours the sum of every row's gradients into the row of `table` (rows, width); `sum`: room for `width` numbers.
  void pour_into(const Sink& table, Size width, float* sum) {
    for (Size row : touched_) {
      Ends& ends = ends_[std::size_t(row)];
      std::fill(sum, sum + width, 0.0f);
      for (std::int32_t e = ends.first; e != kNone; e = entries_[std::size_t(e)].next)
        add_scaled(width, entries_[std::size_t(e)].factor, entries_[std::size_t(e)].gradient, sum);
      add_scaled(width, table.alpha, sum, table.to + row * width);
      ends = {kNone, kNone};
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
};

}  // namespace fastfed
