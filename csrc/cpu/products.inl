// The tiles behind products.h, compiled once per SIMD level with FF_LEVEL naming the level. A tile keeps its sums in
// registers; contraction to fused multiply-adds is wanted here (setup.py: -ffp-contract=fast).

#include "cpu/products.h"
#include "cpu/vectors.inl"

namespace fastfed {
namespace {

#if defined(__AVX512F__)
constexpr int kRows = 6, kTallRows = 12, kColumns = 4;  // 24 of 32 registers hold sums
#elif defined(__AVX2__)
constexpr int kRows = 6, kTallRows = 6, kColumns = 2;  // 12 of 16
#else
constexpr int kRows = 4, kTallRows = 4, kColumns = 2;
#endif

typedef int Lanes __attribute__((vector_size(kWidth * 4)));

// The sum of all lanes, folded in halves.
inline float folded(Vec v) {
#pragma GCC unroll 4
  for (int half = kWidth / 2; half > 0; half /= 2) {
    Lanes partner;
#pragma GCC unroll 16
    for (int i = 0; i < kWidth; ++i) partner[i] = i ^ half;
    v += __builtin_shuffle(v, partner);
  }
  return v[0];
}

// ---- outer products ------------------------------------------------------------------------------------------------

// R rows of G groups by C vectors of columns; the last vector holds `last` columns, kWidth if Whole.
template <int G, int R, int C, bool Whole> void outer_tile(const Outer& o, Size group, Size i, Size j, int last) {
  const float* a = o.a + group * o.a_group + i * o.a_row;
  const float* b = o.b + j;
  Vec sum[G][R][C];
#pragma GCC unroll 4
  for (int g = 0; g < G; ++g)
#pragma GCC unroll 12
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
      for (int v = 0; v < C; ++v) sum[g][r][v] = Vec{};
  for (Size s = 0; s < o.segments; ++s) {
    const float* as = a + s * o.a_segment;
    const float* bs = b + s * o.b_segment;
    for (Size p = 0; p < o.steps; ++p, as += o.a_step, bs += o.b_step) {
      Vec row[C];
#pragma GCC unroll 4
      for (int v = 0; v < C; ++v)
        row[v] = Whole || v < C - 1 ? load(bs + v * kWidth) : load_part(bs + v * kWidth, last);
#pragma GCC unroll 4
      for (int g = 0; g < G; ++g)
#pragma GCC unroll 12
        for (int r = 0; r < R; ++r) {
          const float factor = as[g * o.a_group + r * o.a_row];
#pragma GCC unroll 4
          for (int v = 0; v < C; ++v) sum[g][r][v] = factor * row[v] + sum[g][r][v];
        }
    }
  }
#pragma GCC unroll 4
  for (int g = 0; g < G; ++g)
#pragma GCC unroll 12
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
      for (int v = 0; v < C; ++v) {
        const Size place = (group + g) * o.rows + i + r;
        float* to = o.c + place * o.c_row + j + v * kWidth;
        const Vec scaled = o.alpha * sum[g][r][v];
        const float* plus = o.plus + place * o.plus_row + j + v * kWidth;
        if (Whole || v < C - 1)
          store(to, o.plus ? scaled + load(plus) : scaled);
        else
          store_part(to, o.plus ? scaled + load_part(plus, last) : scaled, last);
      }
}

template <int R, int C, bool Whole> void outer_rest(const Outer& o, Size group, Size i, Size j, int last) {
  if constexpr (R > 0) {
    if (o.rows - i == R)
      outer_tile<1, R, C, Whole>(o, group, i, j, last);
    else
      outer_rest<R - 1, C, Whole>(o, group, i, j, last);
  }
}

// All rows of one group.
template <int C, bool Whole> void outer_rows(const Outer& o, Size group, Size j, int last) {
  constexpr int kTile = C <= 2 ? kTallRows : kRows;
  Size i = 0;
  for (; i + kTile <= o.rows; i += kTile) outer_tile<1, kTile, C, Whole>(o, group, i, j, last);
  outer_rest<kTile - 1, C, Whole>(o, group, i, j, last);
}

// Groups of few rows leave registers for several at once; the number of groups that were taken.
template <int R, bool Whole> Size outer_groups(const Outer& o, Size j, int last) {
  if constexpr (R > 1) {
    if (o.rows != R) return outer_groups<R - 1, Whole>(o, j, last);
    constexpr int kGroups = kRows * kColumns / R < 4 ? kRows * kColumns / R : 4;
    Size group = 0;
    for (; group + kGroups <= o.groups; group += kGroups) outer_tile<kGroups, R, 1, Whole>(o, group, 0, j, last);
    return group;
  }
  return 0;
}

// All rows of C vectors of columns from column j on.
template <int C, bool Whole> void outer_stripe(const Outer& o, Size j, int last) {
  Size group = 0;
  if constexpr (C == 1)
    if (o.groups > 1) group = outer_groups<kRows, Whole>(o, j, last);
  for (; group < o.groups; ++group) outer_rows<C, Whole>(o, group, j, last);
}

template <int C> void outer_last_stripe(const Outer& o, Size j) {
  if constexpr (C > 0) {
    const Size left = o.cols - j;
    if ((left + kWidth - 1) / kWidth != C) return outer_last_stripe<C - 1>(o, j);
    const int last = int(left - (C - 1) * kWidth);
    last == kWidth ? outer_stripe<C, true>(o, j, last) : outer_stripe<C, false>(o, j, last);
  }
}

void outer(const Outer& o) {
  constexpr Size kStripe = kColumns * kWidth;
  Size j = 0;
  for (; j + kStripe <= o.cols; j += kStripe) outer_stripe<kColumns, true>(o, j, kWidth);
  outer_last_stripe<kColumns>(o, j);
}

// ---- dot products --------------------------------------------------------------------------------------------------

template <int R, int C>
void dot_tile(const Dot& d, const float* __restrict a, const float* __restrict b, float* __restrict c,
              const float* bias) {
  Vec sum[R][C];
#pragma GCC unroll 4
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 6
    for (int v = 0; v < C; ++v) sum[r][v] = Vec{};
  Size k = 0;
  for (; k + kWidth <= d.depth; k += kWidth) {
    Vec right[C];
#pragma GCC unroll 6
    for (int v = 0; v < C; ++v) right[v] = load(b + v * d.b_row + k);
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) {
      const Vec left = load(a + r * d.a_row + k);
#pragma GCC unroll 6
      for (int v = 0; v < C; ++v) sum[r][v] = left * right[v] + sum[r][v];
    }
  }
  if (k < d.depth) {
    const int n = int(d.depth - k);
    Vec right[C];
#pragma GCC unroll 6
    for (int v = 0; v < C; ++v) right[v] = load_part(b + v * d.b_row + k, n);
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) {
      const Vec left = load_part(a + r * d.a_row + k, n);
#pragma GCC unroll 6
      for (int v = 0; v < C; ++v) sum[r][v] = left * right[v] + sum[r][v];
    }
  }
#pragma GCC unroll 4
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 6
    for (int v = 0; v < C; ++v) c[r * d.c_row + v] = folded(sum[r][v]) + (bias ? bias[v] : 0.0f);
}

#if defined(__AVX512F__)
constexpr int kDotRows = 4, kDotColumns = 6;
#else
constexpr int kDotRows = 2, kDotColumns = 4;
#endif

template <int C> void dot_stripe(const Dot& d, Size j) {
  const float* b = d.b + j * d.b_row;
  const float* bias = d.bias ? d.bias + j : nullptr;
  Size i = 0;
  for (; i + kDotRows <= d.rows; i += kDotRows)
    dot_tile<kDotRows, C>(d, d.a + i * d.a_row, b, d.c + i * d.c_row + j, bias);
  for (; i < d.rows; ++i) dot_tile<1, C>(d, d.a + i * d.a_row, b, d.c + i * d.c_row + j, bias);
}

template <int C> void dot_last_stripe(const Dot& d, Size j) {
  if constexpr (C > 0) {
    if (d.cols - j == C)
      dot_stripe<C>(d, j);
    else
      dot_last_stripe<C - 1>(d, j);
  }
}

void dot(const Dot& d) {
  Size j = 0;
  for (; j + kDotColumns <= d.cols; j += kDotColumns) dot_stripe<kDotColumns>(d, j);
  dot_last_stripe<kDotColumns - 1>(d, j);
}

}  // namespace

const Products& FF_JOIN(products_, FF_LEVEL)() {
  static const Products table{outer, dot};
  return table;
}

}  // namespace fastfed
