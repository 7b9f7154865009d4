// The weights of sparse layers lie transposed in the engine: a whole model is transposed from torch's order on all
// threads.
#pragma once

#include <vector>

#include "engine/program.h"

namespace fastfed {

// engine (d,) = packed (d,) with every table (channels, rows) transposed to (rows, channels). `tables` rise by offset.
void to_engine_order(const std::vector<SparseWeight>& tables, Size d, const float* packed, float* engine, int threads);

// Rows of a table that are transposed at once. In torch's order they are a few cache lines of every row.
constexpr Size kTransposedRows = 32;

// rows (count, channels), which belong to a table from row `first` on, to their places in the packed vector.
void rows_to_torch_order(const SparseWeight& table, Size first, Size count, const float* rows, float* packed);

// work(begin, n) for every run of a vector of d numbers that is not in a table.
template <class Work> void for_gaps(const std::vector<SparseWeight>& tables, Size d, Work work) {
  Size begin = 0;
  for (const SparseWeight& table : tables) {
    if (table.offset > begin) work(begin, table.offset - begin);
    begin = table.end();
  }
  if (d > begin) work(begin, d - begin);
}

}  // namespace fastfed
