// The tiles behind products.h, compiled once per SIMD level with FF_LEVEL naming the level. A tile keeps its sums in
// registers; contraction to fused multiply-adds is wanted here (setup.py: -ffp-contract=fast).

#include <algorithm>
#include <memory>
#include <utility>

#include "simd/products.h"
#include "simd/vectors.inl"

namespace fastfed {
namespace {

// A tile is rows_of(C) rows by C <= kColumns vectors: as many sums as registers hold, and more of them than a
// multiply-add has cycles of latency times two a cycle.
#if defined(__AVX512F__)
constexpr int kSums = 24, kColumns = 4;  // of 32 registers
constexpr int rows_of(int columns) { return columns <= 2 ? 12 : 6; }
#elif defined(__AVX2__)
constexpr int kSums = 12, kColumns = 3;  // of 16
constexpr int rows_of(int columns) { return columns == 3 ? 4 : 6; }
#else
constexpr int kSums = 8, kColumns = 2;
constexpr int rows_of(int) { return 4; }
#endif
constexpr Size kStripe = kColumns * kWidth;

// Numbers of an operand that are read again and again, and should stay in a core's second cache.
constexpr Size kPanel = 65536;

// Numbers from which on an operand that is read once comes from farther away than that.
constexpr Size kFar = 4 * kPanel;

// ---- outer products ------------------------------------------------------------------------------------------------

// What a tile fetches of the stripe of a large b behind its own, one vector of a row for each of its steps; null:
// nothing. The tiles of a stripe go through the vectors in turn, and have all of them when there are as many tiles.
template <int C> const float* outer_next(const Outer& o, Size group, Size i, Size j, int rows) {
  const Size vector = i / rows, next = j + (C + vector) * kWidth;
  const bool is_far = group == 0 && o.segments == 1 && o.cols * o.steps > kFar;
  return is_far && vector < kColumns && next < o.cols ? o.b + next : nullptr;
}

// R rows of G groups by C vectors of columns; the last vector holds `last` columns, kWidth if Whole.
template <int G, int R, int C, bool Whole> void outer_tile(const Outer& o, Size group, Size i, Size j, int last) {
  const float* next = outer_next<C>(o, group, i, j, rows_of(C));
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
      if (next) __builtin_prefetch(next + p * o.b_step);
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
  constexpr int kTile = rows_of(C);
  Size i = 0;
  for (; i + kTile <= o.rows; i += kTile) outer_tile<1, kTile, C, Whole>(o, group, i, j, last);
  outer_rest<kTile - 1, C, Whole>(o, group, i, j, last);
}

// Groups of few rows leave registers for several at once; the number of groups that were taken.
template <int R, bool Whole> Size outer_groups(const Outer& o, Size j, int last) {
  if constexpr (R > 1) {
    if (o.rows != R) return outer_groups<R - 1, Whole>(o, j, last);
    constexpr int kGroups = kSums / R < 4 ? kSums / R : 4;
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
    if (o.groups > 1) group = outer_groups<rows_of(kColumns - 1), Whole>(o, j, last);
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
  Size j = 0;
  for (; j + kStripe <= o.cols; j += kStripe) {
    const Size left = (o.cols - j + kWidth - 1) / kWidth;
    if (kColumns == 3 && left == 4) {  // twice two are better than three and one
      outer_stripe<2, true>(o, j, kWidth);
      j += 2 * kWidth;
      break;
    }
    outer_stripe<kColumns, true>(o, j, kWidth);
  }
  outer_last_stripe<kColumns>(o, j);
}

// ---- updates -------------------------------------------------------------------------------------------------------

constexpr int kUpdateRows = rows_of(kColumns);

// The factors of an update copied out tile by tile: many steps through a matrix with long rows would be as many lines
// of the cache.
struct Packed {
  static constexpr Size kSteps = 128, kLeast = 32;  // in one go; the fewest that are worth a copy
  alignas(64) float a[kSteps * kUpdateRows], b[kPanel];

  void take_a(const Update& u) {
    for (Size p = 0; p < u.steps; ++p)
      for (int r = 0; r < kUpdateRows; ++r) a[p * kUpdateRows + r] = u.a[p * u.a_step + r];
  }

  void take_b(const Update& u) {
    float* to = b;
    for (Size j = 0; j + kStripe <= u.cols; j += kStripe)
      for (Size p = 0; p < u.steps; ++p, to += kStripe)
#pragma GCC unroll 4
        for (int v = 0; v < kColumns; ++v) store(to + v * kWidth, load(u.b + p * u.b_step + j + v * kWidth));
  }
};

// R rows by C vectors of columns from the first; the tile behind it is fetched in the meantime. The last vector holds
// `last` columns, kWidth if Whole.
template <int R, int C, bool Whole> void update_tile(const Update& u, int last) {
  const float *a = u.a, *b = u.b;
  float* c = u.c;
#pragma GCC unroll 12
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
    for (int at = 0; at < C * kWidth; at += 16) __builtin_prefetch(c + r * u.c_row + C * kWidth + at, 1);
  Vec sum[R][C];
#pragma GCC unroll 12
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
    for (int v = 0; v < C; ++v) sum[r][v] = Vec{};
  for (Size p = 0; p < u.steps; ++p, a += u.a_step, b += u.b_step) {
    Vec row[C];
#pragma GCC unroll 4
    for (int v = 0; v < C; ++v) row[v] = Whole || v < C - 1 ? load(b + v * kWidth) : load_part(b + v * kWidth, last);
#pragma GCC unroll 12
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
      for (int v = 0; v < C; ++v) sum[r][v] = a[r] * row[v] + sum[r][v];
  }
#pragma GCC unroll 12
  for (int r = 0; r < R; ++r, c += u.c_row)
#pragma GCC unroll 4
    for (int v = 0; v < C; ++v) {
      float* to = c + v * kWidth;
      const Vec scaled = u.alpha * sum[r][v];
      if (Whole || v < C - 1)
        store(to, u.add ? scaled + load(to) : scaled);
      else
        store_part(to, u.add ? scaled + load_part(to, last) : scaled, last);
    }
}

template <int R, int C> void update_last(const Update& u, Size left) {
  if constexpr (C > 0) {
    if ((left + kWidth - 1) / kWidth != C) return update_last<R, C - 1>(u, left);
    const int last = int(left - (C - 1) * kWidth);
    last == kWidth ? update_tile<R, C, true>(u, last) : update_tile<R, C, false>(u, last);
  }
}

// At most R rows, all columns; the factors are read from `packed` unless it is null.
template <int R> void update_rows(const Update& u, const Packed* packed) {
  if constexpr (R > 0) {
    if (u.rows < R) return update_rows<R - 1>(u, packed);
    Update tile = u;
    if (packed) {
      tile.a = packed->a;
      tile.a_step = kUpdateRows;
      tile.b_step = kStripe;
    }
    Size j = 0;
    for (; j + kStripe <= u.cols; j += kStripe) {
      tile.b = packed ? packed->b + j * u.steps : u.b + j;
      tile.c = u.c + j;
      if (u.ahead) u.ahead->fetch();
      update_tile<R, kColumns, true>(tile, kWidth);
    }
    tile.b = u.b + j;
    tile.b_step = u.b_step;
    tile.c = u.c + j;
    update_last<R, kColumns>(tile, u.cols - j);
  }
}

// As much of b as stays in the cache, row after row of c.
void update_panel(const Update& u) {
  static thread_local const std::unique_ptr<Packed> packed = std::make_unique<Packed>();
  const bool packs = u.steps >= Packed::kLeast && u.rows > kUpdateRows;
  if (packs) packed->take_b(u);
  Update rows = u;
  for (Size left = u.rows; left > 0; left -= kUpdateRows) {
    rows.rows = left < kUpdateRows ? left : kUpdateRows;
    const bool whole = packs && rows.rows == kUpdateRows;
    if (whole) packed->take_a(rows);
    update_rows<kUpdateRows>(rows, whole ? packed.get() : nullptr);
    rows.a += kUpdateRows;
    rows.c += kUpdateRows * u.c_row;
  }
}

// A sum over more steps than are packed in one go is added to c in parts.
void update(const Update& u) {
  for (Size p = 0; p < u.steps; p += Packed::kSteps) {
    Update part = u;
    part.steps = u.steps - p < Packed::kSteps ? u.steps - p : Packed::kSteps;
    part.add = u.add || p > 0;
    const Size width = kPanel / part.steps / kStripe * kStripe;
    for (Size j = 0; j < u.cols; j += width) {
      part.cols = u.cols - j < width ? u.cols - j : width;
      part.a = u.a + p * u.a_step;
      part.b = u.b + p * u.b_step + j;
      part.c = u.c + j;
      update_panel(part);
    }
  }
}

// ---- dot products --------------------------------------------------------------------------------------------------

typedef float Four __attribute__((vector_size(16), aligned(4), may_alias));
constexpr auto kEach = std::make_integer_sequence<int, kWidth>{};

// Shuffles take their places from a list that is known when this is compiled: places worked out in a loop are worked
// out again at every call.
template <int... Place> inline Vec shuffled(Vec a, Vec b) {
#if defined(__clang__)
  return __builtin_shufflevector(a, b, Place...);
#else
  typedef int Places __attribute__((vector_size(kWidth * 4)));
  return __builtin_shuffle(a, b, Places{Place...});
#endif
}

// Of every block of four lanes, four of the eight that a (0 to 3) and b (4 to 7) have there.
template <int P, int Q, int R, int S, int... I> inline Vec pick(Vec a, Vec b, std::integer_sequence<int, I...>) {
  constexpr int from[] = {P, Q, R, S};
  return shuffled<(I / 4 * 4 + from[I % 4] % 4 + from[I % 4] / 4 * kWidth)...>(a, b);
}

template <int Half, int... I> inline Vec add_halves(Vec v, std::integer_sequence<int, I...>) {
  return v + shuffled<(I ^ Half)...>(v, v);
}

// The sums of the lanes of four vectors, folded together: half the shuffles of one after the other.
inline Four folded(Vec a, Vec b, Vec c, Vec d) {
  const Vec ab = pick<0, 4, 1, 5>(a, b, kEach) + pick<2, 6, 3, 7>(a, b, kEach);
  const Vec cd = pick<0, 4, 1, 5>(c, d, kEach) + pick<2, 6, 3, 7>(c, d, kEach);
  Vec all = pick<0, 1, 4, 5>(ab, cd, kEach) + pick<2, 3, 6, 7>(ab, cd, kEach);
  if constexpr (kWidth >= 16) all = add_halves<8>(all, kEach);
  if constexpr (kWidth >= 8) all = add_halves<4>(all, kEach);
  return Four{all[0], all[1], all[2], all[3]};
}

// A tile is at most kDotRows by kDotColumns sums.
constexpr int kDotColumns = 4;  // what `folded` takes
#if defined(__AVX512F__)
constexpr int kDotRows = 6;
#elif defined(__AVX2__)
constexpr int kDotRows = 3;
#else
constexpr int kDotRows = 2;
#endif

// How long sums are that are added up in one go: as much of b stays near while rows of `a` pass by.
constexpr Size kDotDepth = 1024;
// Numbers of `a` in one panel: where all of b stays in the second cache, what nearly fits the first; where b comes from
// farther away, it should not come often.
constexpr Size kDotPanel = 16384, kDotFarPanel = kPanel;
static_assert(kDotPanel / kDotDepth >= kDotRows);

// R rows by C columns. If Fetches, as much of what is at `next` comes into the cache in the meantime as a row of b is
// long.
template <int R, int C, bool Fetches> void dot_tile(const Dot& d, Size i, Size j, [[maybe_unused]] const float* next) {
  const float* a = d.a + i * d.a_row;
  const float* b = d.b + j * d.b_row;
  Vec sum[R][kDotColumns];
#pragma GCC unroll 6
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
    for (int v = 0; v < kDotColumns; ++v) sum[r][v] = Vec{};
  Size k = 0;
  for (; k + kWidth <= d.depth; k += kWidth) {
    Vec left[R];
    if constexpr (Fetches) __builtin_prefetch(next + k);
#pragma GCC unroll 6
    for (int r = 0; r < R; ++r) left[r] = load(a + r * d.a_row + k);
#pragma GCC unroll 4
    for (int v = 0; v < C; ++v) {
      const Vec right = load(b + v * d.b_row + k);
#pragma GCC unroll 6
      for (int r = 0; r < R; ++r) sum[r][v] = left[r] * right + sum[r][v];
    }
  }
  if (k < d.depth) {
    const int n = int(d.depth - k);
    Vec right[C];
#pragma GCC unroll 4
    for (int v = 0; v < C; ++v) right[v] = load_part(b + v * d.b_row + k, n);
#pragma GCC unroll 6
    for (int r = 0; r < R; ++r) {
      const Vec left = load_part(a + r * d.a_row + k, n);
#pragma GCC unroll 4
      for (int v = 0; v < C; ++v) sum[r][v] = left * right[v] + sum[r][v];
    }
  }
#pragma GCC unroll 6
  for (int r = 0; r < R; ++r) {
    const Four sums = folded(sum[r][0], sum[r][1], sum[r][2], sum[r][3]);
    float* c = d.c + (i + r) * d.c_row + j;
    const float* plus = d.plus ? d.plus + (i + r) * d.plus_row + j : nullptr;
    if constexpr (C == kDotColumns)
      *reinterpret_cast<Four*>(c) = plus ? sums + *reinterpret_cast<const Four*>(plus) : sums;
    else
      for (int v = 0; v < C; ++v) c[v] = plus ? sums[v] + plus[v] : sums[v];
  }
}

template <int R, int C> void dot_tile_of(const Dot& d, Size i, Size end, Size j, const float* next) {
  if constexpr (R > 0) {
    if (end - i != R) return dot_tile_of<R - 1, C>(d, i, end, j, next);
    next ? dot_tile<R, C, true>(d, i, j, next) : dot_tile<R, C, false>(d, i, j, next);
  }
}

// All rows of C columns, dealt evenly to as few tiles as can be. A large b comes from far away: while the tiles of one
// stripe are worked on, each fetches a row of the next.
template <int C> void dot_stripe(const Dot& d, Size j) {
  const Size tiles = (d.rows + kDotRows - 1) / kDotRows, fetched = d.cols * d.depth > kFar ? d.cols - j - C : 0;
  for (Size t = 0; t < tiles; ++t) {
    if (d.ahead) d.ahead->fetch();
    const float* next = t < std::min(fetched, Size(C)) ? d.b + (j + C + t) * d.b_row : nullptr;
    dot_tile_of<kDotRows, C>(d, d.rows * t / tiles, d.rows * (t + 1) / tiles, j, next);
  }
}

template <int C> void dot_last_stripe(const Dot& d, Size j) {
  if constexpr (C > 0) d.cols - j == C ? dot_stripe<C>(d, j) : dot_last_stripe<C - 1>(d, j);
}

void dot_panel(const Dot& d) {
  Size j = 0;
  for (; j + kDotColumns <= d.cols; j += kDotColumns) dot_stripe<kDotColumns>(d, j);
  dot_last_stripe<kDotColumns - 1>(d, j);
}

// As many rows in one go as stay in the cache while all of b passes by.
void dot_part(const Dot& d) {
  const bool is_far = d.cols * d.depth > kFar;
  const Size most = (is_far ? kDotFarPanel : kDotPanel) / std::max(d.depth, Size(1));
  const Size panels = (d.rows + most - 1) / most;
  for (Size p = 0; p < panels; ++p) {
    const Size begin = d.rows * p / panels;
    Dot panel = d;
    panel.rows = d.rows * (p + 1) / panels - begin;
    panel.a += begin * d.a_row;
    panel.c += begin * d.c_row;
    if (d.plus) panel.plus += begin * d.plus_row;
    dot_panel(panel);
  }
}

// Long sums in parts of about the same length; a sum of nothing is one part too.
void dot(const Dot& d) {
  const Size parts = std::max((d.depth + kDotDepth - 1) / kDotDepth, Size(1));
  const Size most = ((d.depth + parts - 1) / parts + kWidth - 1) / kWidth * kWidth;
  for (Size part = 0; part < parts; ++part) {
    const Size k = part * most;
    Dot some = d;
    some.depth = std::min(d.depth - k, most);
    some.a += k;
    some.b += k;
    if (part > 0) {
      some.plus = d.c;
      some.plus_row = d.c_row;
    }
    dot_part(some);
  }
}

Size spin(Size rounds, float* numbers) {
  Vec sum[kSums];
#pragma GCC unroll 24
  for (int i = 0; i < kSums; ++i) sum[i] = load(numbers + i * kWidth);
  for (Size round = 0; round < rounds; ++round) {
#pragma GCC unroll 24
    for (int i = 0; i < kSums; ++i) sum[i] = 0.5f * sum[i] + 1.0f;
  }
#pragma GCC unroll 24
  for (int i = 0; i < kSums; ++i) store(numbers + i * kWidth, sum[i]);
  return 2 * rounds * kSums * kWidth;
}

// From where on the library is better, measured at batches of 4 to 320. Where the processor is not of its maker's, the
// library leaves the longest vectors alone: half of what our own tiles do, at batches of 1 to 1024 (docs/speed.md).
Reach reach() {
  Reach r;
#if defined(__AVX512F__)
  r.dot_depth = 192;
  r.dot_rows = 32;
  r.dot_columns = 128;
  r.dot_multiple = 8;
  r.updates = r.everything = !__builtin_cpu_is("intel");
#elif defined(__AVX2__)
  r.dot_depth = 192;
  r.outer_rows = 24;
#endif
  return r;
}

}  // namespace

const Products& FF_JOIN(products_, FF_LEVEL)() {
  static const Products table{outer, update, dot, spin, reach()};
  return table;
}

}  // namespace fastfed
