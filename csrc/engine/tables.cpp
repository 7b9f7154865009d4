// Transposition of tables in groups of rows.
#include "engine/tables.h"

#include <cstring>

#include "engine/layers/transpose.h"
#include "kernels/parallel.h"
#include "simd/clones.h"

namespace fastfed {
namespace {

constexpr Size kTile = 16;  // floats of a cache line

// to (cols, rows) = from (rows, cols) transposed; the rows of either lie from_row and to_row apart.
FF_CLONES void transpose_block(Size rows, Size cols, const float* from, Size from_row, float* to, Size to_row) {
  for (Size r = 0; r < rows; r += kTile)
    for (Size c = 0; c < cols; c += kTile)
      transpose_tile<false>(std::min(kTile, rows - r), std::min(kTile, cols - c), from + r * from_row + c, from_row,
                            to + c * to_row + r, to_row);
}

}  // namespace

void to_engine_order(const std::vector<SparseWeight>& tables, Size d, const float* packed, float* engine, int threads) {
  for_gaps(tables, d, [&](Size begin, Size n) {
    for_chunks(n, threads, [&](Size at, Size count) {
      std::memcpy(engine + begin + at, packed + begin + at, std::size_t(count) * sizeof(float));
    });
  });
  for (const SparseWeight& table : tables)
    for_tasks((table.rows + kTransposedRows - 1) / kTransposedRows, threads, [&](Size task, int) {
      const Size first = task * kTransposedRows, count = std::min(kTransposedRows, table.rows - first);
      transpose_block(table.channels, count, packed + table.offset + first, table.rows,
                      engine + table.offset + first * table.channels, table.channels);
    });
}

void rows_to_torch_order(const SparseWeight& table, Size first, Size count, const float* rows, float* packed) {
  transpose_block(count, table.channels, rows, table.channels, packed + table.offset + first, table.rows);
}

}  // namespace fastfed
