// The loops behind vector_loops.h, compiled once per SIMD level with FF_LEVEL naming the level. Everything has internal
// linkage: a function shared between levels by the linker could carry instructions that the machine does not have.

#include <algorithm>
#include <cstring>

#if defined(__SSE2__)
#include <immintrin.h>
#endif

#include "simd/square_lanes.h"
#include "simd/trimming.inl"
#include "simd/vector_loops.h"

namespace fastfed {
namespace {

constexpr int kLanes = 16;
#if defined(__AVX2__)
constexpr bool kHasMasks = true;  // vectors can be loaded and stored in part
#else
constexpr bool kHasMasks = false;
#endif

// ---- sums in fixed lanes -------------------------------------------------------------------------------------------

// Sum over i of square(term(i)).
template <class Term> FF_FN double sum_of_squares(std::int64_t n, Term term) {
  double lanes[kSquareLanes] = {};
  std::int64_t i = 0;
  for (; i + kSquareLanes <= n; i += kSquareLanes) {
#pragma GCC unroll 16
    for (int l = 0; l < kSquareLanes; ++l) {
      const double a = double(term(i + l));
      lanes[l] += a * a;
    }
  }
  for (int l = 0; i + l < n; ++l) {
    const double a = double(term(i + l));
    lanes[l] += a * a;
  }
  return folded(lanes);
}

// ---- elementwise rules ---------------------------------------------------------------------------------------------

template <class T, class Rule, bool OfDelta, bool HasM>
void server_block(std::int64_t n, T* __restrict x, const T* __restrict delta, T* __restrict m, T* __restrict v,
                  T* __restrict vmax, const ServerNumbers<T>& numbers) {
  const ServerNumbers<T> k = numbers;
  for (std::int64_t i = 0; i < n; ++i) {
    T xi = x[i], mi = HasM ? m[i] : T(0), vi = Rule::has_v ? v[i] : T(0), wi = Rule::has_vmax ? vmax[i] : T(0);
    Rule::template step<OfDelta>(xi, delta[i], mi, vi, wi, k);
    x[i] = xi;
    if (HasM) m[i] = mi;
    if (Rule::has_v) v[i] = vi;
    if (Rule::has_vmax) vmax[i] = wi;
  }
}

template <class T, class Direction, bool Refresh>
void client_block(std::int64_t n, T* __restrict x, const T* __restrict g, T* __restrict m, T* __restrict v, T step,
                  const DirectionNumbers<T>& numbers) {
  const DirectionNumbers<T> k = numbers;
  for (std::int64_t i = 0; i < n; ++i) {
    T mi = Direction::has_m ? m[i] : T(0), vi = Direction::has_v ? v[i] : T(0);
    if (Refresh && Direction::has_v) vi = second_moment(vi, g[i] * g[i], k.beta2, k.gain2);
    const T direction = Direction::of(g[i], mi, vi, k);
    x[i] = moved(x[i], direction, step);
    if (Direction::has_m) m[i] = mi;
    if (Refresh && Direction::has_v) v[i] = vi;
  }
}

template <class T, class Direction, bool Refresh>
double direction_squares_block(std::int64_t n, const T* __restrict g, const T* __restrict m, const T* __restrict v,
                               const DirectionNumbers<T>& numbers) {
  const DirectionNumbers<T> k = numbers;
  return sum_of_squares(n, [&](std::int64_t i) {
    T mi = Direction::has_m ? m[i] : T(0), vi = Direction::has_v ? v[i] : T(0);
    if (Refresh && Direction::has_v) vi = second_moment(vi, g[i] * g[i], k.beta2, k.gain2);
    return Direction::of(g[i], mi, vi, k);
  });
}

// ---- covered rules -------------------------------------------------------------------------------------------------

// The extremes of cover values, without rules.h's care for NaN: a second instruction here would cost a quarter of the
// pass. A NaN still reaches x at its own coordinate.
template <class T> FF_FN T upper(T a, T b) { return a > b ? a : b; }
template <class T> FF_FN T lower(T a, T b) { return a < b ? a : b; }

constexpr bool raises(int source) { return source == kFresh || source == kFreshKept; }

template <int Source, class T> FF_FN T nu_at(T row_min, T col_min, T kept, T g, const DirectionNumbers<T>& k) {
  if (Source == kKept) return kept;
  const T smallest = lower(row_min, col_min);
  return Source == kFromCover ? smallest : second_moment(smallest, g * g, k.beta2, k.gain2);
}

// The columns [begin, end) of one row, of which only those below `cols` exist; the pointers are at the row's start.
// Returns the largest second moment, `top` included.
template <class T, class Direction, int Source, bool HasM>
FF_FN T covered_run(std::int64_t begin, std::int64_t end, std::int64_t cols, T* __restrict x, const T* __restrict g,
                    T* __restrict m, T* __restrict nu, const T* __restrict col_min, T* __restrict col_max, T row_min,
                    T top, T step, const DirectionNumbers<T>& k) {
#pragma omp simd reduction(max : top)
  for (std::int64_t c = begin; c < end; ++c) {
    if (c >= cols) continue;
    const T v = nu_at<Source>(row_min, col_min[c], Source == kKept ? nu[c] : T(0), g[c], k);
    T mc = HasM ? m[c] : T(0);
    const T direction = Direction::of(g[c], mc, v, k);
    x[c] = moved(x[c], direction, step);
    if (HasM) m[c] = mc;
    if (Source == kFreshKept) nu[c] = v;
    if (raises(Source)) {
      col_max[c] = upper(col_max[c], v);
      top = upper(top, v);
    }
  }
  return top;
}

// ---- narrow rows: row after row their vectors would be half empty, and each ends in a maximum over its lanes. Rows
// that follow each other without a gap are worked as one run instead, with what belongs to rows and columns spread over
// it.

constexpr std::int64_t kNarrow = 32;  // columns of narrow rows, fewer than these
constexpr std::int64_t kNarrowRun = 512;

template <class T> struct NarrowRun {
  alignas(64) T row_min[kNarrowRun + kNarrow], col_min[kNarrowRun + kNarrow], col_max[kNarrowRun];
  alignas(64) T v[kNarrowRun + kNarrow] = {};  // beyond the run: zeros, which raise nothing
};

template <class T> FF_FN bool is_narrow(const Tile<T>& tile) {
  return tile.cols < kNarrow && tile.rows > 1 && tile.stride == tile.cols && tile.grad_stride == tile.cols;
}

// What is in v, raised into the maxima of its rows: windows of twice the width, and again, until they are as wide as a
// row. Spoils v.
template <class T> FF_FN void raise_rows(std::int64_t rows, std::int64_t cols, T* v, T* __restrict row_max) {
  std::int64_t width = 1;
  while (width < cols) {
    const std::int64_t further = width * 2 <= cols ? width : cols - width, n = rows * cols;
#pragma omp simd
    for (std::int64_t i = 0; i < n; ++i) v[i] = upper(v[i], v[i + further]);
    width += further;
  }
  for (std::int64_t r = 0; r < rows; ++r) row_max[r] = upper(row_max[r], v[r * cols]);
}

// The maxima of a run's places, raised into those of their columns: the second half of its rows into the first, and
// again, until one is left. Spoils them.
template <class T> FF_FN void raise_columns(std::int64_t rows, std::int64_t cols, T* of_run, T* __restrict col_max) {
  while (rows > 1) {
    const std::int64_t half = (rows + 1) / 2, n = (rows - half) * cols;
#pragma omp simd
    for (std::int64_t i = 0; i < n; ++i) of_run[i] = upper(of_run[i], of_run[i + half * cols]);
    rows = half;
  }
  for (std::int64_t c = 0; c < cols; ++c) col_max[c] = upper(col_max[c], of_run[c]);
}

// A row's numbers, or one number, again and again: each time a whole vector, whose end the next one writes over.
template <class T> FF_FN void spread_row(std::int64_t rows, std::int64_t cols, const T* row, T* __restrict out) {
  T wide[kNarrow] = {};
  std::copy(row, row + cols, wide);
  for (std::int64_t r = 0; r < rows; ++r)
    for (std::int64_t c = 0; c < kNarrow; ++c) out[r * cols + c] = wide[c];
}

template <class T> FF_FN void spread_each(std::int64_t rows, std::int64_t cols, const T* each, T* __restrict out) {
  for (std::int64_t r = 0; r < rows; ++r)
    for (std::int64_t c = 0; c < kNarrow; ++c) out[r * cols + c] = each[r];
}

template <class T, class Direction, int Source, bool HasM>
void narrow_tile(const Tile<T>& tile, T step, const DirectionNumbers<T>& k) {
  NarrowRun<T> run;
  const std::int64_t cols = tile.cols, most = kNarrowRun / cols;
  if (Source != kKept) spread_row(most, cols, tile.col_min, run.col_min);
  if (raises(Source)) std::fill(run.col_max, run.col_max + most * cols, T(0));
  for (std::int64_t r = 0; r < tile.rows; r += most) {
    const std::int64_t rows = std::min(most, tile.rows - r), at = r * cols, n = rows * cols;
    if (Source != kKept) spread_each(rows, cols, tile.row_min + r, run.row_min);
    T* __restrict x = tile.x + at;
    T* __restrict m = HasM ? tile.m + at : nullptr;
    T* __restrict nu = Source == kFreshKept || Source == kKept ? tile.nu + at : nullptr;
    const T* __restrict g = tile.grad + at;
#pragma omp simd
    for (std::int64_t i = 0; i < n; ++i) {
      const T v = nu_at<Source>(run.row_min[i], run.col_min[i], Source == kKept ? nu[i] : T(0), g[i], k);
      T mi = HasM ? m[i] : T(0);
      const T direction = Direction::of(g[i], mi, v, k);
      x[i] = moved(x[i], direction, step);
      if (HasM) m[i] = mi;
      if (Source == kFreshKept) nu[i] = v;
      if (raises(Source)) {
        run.v[i] = v;
        run.col_max[i] = upper(run.col_max[i], v);
      }
    }
    if (raises(Source)) raise_rows(rows, cols, run.v, tile.row_max + r);
  }
  if (raises(Source)) raise_columns(most, cols, run.col_max, tile.col_max);
}

template <class T, class Direction, int Source, bool HasM>
void covered_tile(const Tile<T>& tile, T step, const DirectionNumbers<T>& numbers) {
  const DirectionNumbers<T> k = numbers;
  if (is_narrow(tile)) return narrow_tile<T, Direction, Source, HasM>(tile, step, k);
  const std::int64_t cols = tile.cols, whole = kHasMasks ? cols - cols % kLanes : cols;
  for (std::int64_t r = 0; r < tile.rows; ++r) {
    T* x = tile.x + r * tile.stride;
    T* m = HasM ? tile.m + r * tile.stride : nullptr;
    T* nu = Source == kFreshKept || Source == kKept ? tile.nu + r * tile.stride : nullptr;
    const T* g = tile.grad + r * tile.grad_stride;
    T top = raises(Source) ? tile.row_max[r] : T(0);
    top = covered_run<T, Direction, Source, HasM>(0, whole, whole, x, g, m, nu, tile.col_min, tile.col_max,
                                                  tile.row_min[r], top, step, k);
    // A ragged end as one masked vector: one by one, its roots and quotients cost as much as a long row.
    if (whole < cols)
      top = covered_run<T, Direction, Source, HasM>(whole, whole + kLanes, cols, x, g, m, nu, tile.col_min,
                                                    tile.col_max, tile.row_min[r], top, step, k);
    if (raises(Source)) tile.row_max[r] = top;
  }
}

template <class T, class Direction, int Source, bool HasM>
double covered_squares_tile(const Tile<T>& tile, const DirectionNumbers<T>& numbers) {
  const DirectionNumbers<T> k = numbers;
  double sum = 0;
  for (std::int64_t r = 0; r < tile.rows; ++r) {
    const T* g = tile.grad + r * tile.grad_stride;
    const T* m = HasM ? tile.m + r * tile.stride : nullptr;
    const T* nu = Source == kFreshKept || Source == kKept ? tile.nu + r * tile.stride : nullptr;
    sum += sum_of_squares(tile.cols, [&](std::int64_t c) {
      const T v = nu_at<Source>(tile.row_min[r], tile.col_min[c], Source == kKept ? nu[c] : T(0), g[c], k);
      T mc = HasM ? m[c] : T(0);
      return Direction::of(g[c], mc, v, k);
    });
  }
  return sum;
}

template <class T> void narrow_maxima_tile(const Tile<T>& tile) {
  NarrowRun<T> run;
  const std::int64_t cols = tile.cols, most = kNarrowRun / cols;
  std::fill(run.col_max, run.col_max + most * cols, T(0));
  for (std::int64_t r = 0; r < tile.rows; r += most) {
    const std::int64_t rows = std::min(most, tile.rows - r), n = rows * cols;
    const T* __restrict g = tile.grad + r * cols;
#pragma omp simd
    for (std::int64_t i = 0; i < n; ++i) {
      run.v[i] = g[i] * g[i];
      run.col_max[i] = upper(run.col_max[i], run.v[i]);
    }
    raise_rows(rows, cols, run.v, tile.row_max + r);
  }
  raise_columns(most, cols, run.col_max, tile.col_max);
}

template <class T> void cover_maxima_tile(const Tile<T>& tile) {
  if (is_narrow(tile)) return narrow_maxima_tile(tile);
  T* __restrict col_max = tile.col_max;
  for (std::int64_t r = 0; r < tile.rows; ++r) {
    const T* __restrict g = tile.grad + r * tile.grad_stride;
    T top = tile.row_max[r];
#pragma omp simd reduction(max : top)
    for (std::int64_t c = 0; c < tile.cols; ++c) {
      const T q = g[c] * g[c];
      col_max[c] = upper(col_max[c], q);
      top = upper(top, q);
    }
    tile.row_max[r] = top;
  }
}

// ---- sums, norms, corrections --------------------------------------------------------------------------------------

template <class T> double measured_move_block(std::int64_t n, T* __restrict x, const T* __restrict g, T step) {
  return sum_of_squares(n, [&](std::int64_t i) {
    const T before = x[i];
    x[i] = moved(before, g[i], step);
    return x[i] - before;
  });
}

template <class T> double squares_block(std::int64_t n, const T* a) {
  return sum_of_squares(n, [&](std::int64_t i) { return a[i]; });
}

template <class T> double change_squares_block(std::int64_t n, const T* g, const T* g_prev) {
  return sum_of_squares(n, [&](std::int64_t i) { return change(g[i], g_prev[i]); });
}

template <class T>
void correct_block(std::int64_t n, T* __restrict out, const T* __restrict g, const T* __restrict x,
                   const T* __restrict anchor, const T* __restrict correction, T weight_decay, T prox, T scale) {
  const T* pulled_to = anchor ? anchor : x;
  if (correction) {
    for (std::int64_t i = 0; i < n; ++i)
      out[i] = corrected_gradient(g[i], x[i], pulled_to[i], correction[i], weight_decay, prox, scale);
  } else {
    for (std::int64_t i = 0; i < n; ++i)
      out[i] = corrected_gradient(g[i], x[i], pulled_to[i], T(0), weight_decay, prox, scale);
  }
}

template <class T> void multiply_block(std::int64_t n, T* x, T factor) {
  for (std::int64_t i = 0; i < n; ++i) x[i] *= factor;
}

template <class T> void raise_block(std::int64_t n, T* __restrict maxima, const T* __restrict others) {
  for (std::int64_t i = 0; i < n; ++i) maxima[i] = upper(maxima[i], others[i]);
}

// ---- half-width deltas ---------------------------------------------------------------------------------------------

FF_FN float from_bfloat16(Half half) { return float_of(std::uint32_t(half) << 16); }

FF_FN float from_float16(Half half) {
  const std::uint32_t sign = std::uint32_t(half & 0x8000) << 16, exponent = (half >> 10) & 31, fraction = half & 1023;
  if (exponent == 31) return float_of(sign | 0x7F800000u | (fraction << 13));  // infinity, NaN
  if (exponent != 0) return float_of(sign | ((exponent + 112) << 23) | (fraction << 13));
  const float subnormal = float(fraction) * 0x1p-24f;
  return sign ? -subnormal : subnormal;
}

template <class T> void widen_same(std::int64_t n, T* out, const void* in) {
  std::memcpy(out, in, std::size_t(n) * sizeof(T));
}

template <class T> void widen_bfloat16(std::int64_t n, T* __restrict out, const void* in) {
  const Half* __restrict half = static_cast<const Half*>(in);
  for (std::int64_t i = 0; i < n; ++i) out[i] = T(from_bfloat16(half[i]));
}

template <class T> void widen_float16(std::int64_t n, T* __restrict out, const void* in) {
  const Half* __restrict half = static_cast<const Half*>(in);
  std::int64_t i = 0;
#if defined(__F16C__)
  if constexpr (sizeof(T) == sizeof(float)) {
    for (; i + 8 <= n; i += 8)
      _mm256_storeu_ps(out + i, _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(half + i))));
  }
#endif
  for (; i < n; ++i) out[i] = T(from_float16(half[i]));
}

// ---- weighted sums -------------------------------------------------------------------------------------------------

// Adds four weighted rows to `out`, in their order, and fetches the four rows after them: n elements of many rows in
// turn are too short a run for the hardware's prefetcher, which starts anew at every row.
template <class T>
FF_FN void add_four_rows(std::int64_t n, T* __restrict out, const T* const* rows, const T* weights,
                         const T* const* next) {
  const T* __restrict a = rows[0], * __restrict b = rows[1], * __restrict c = rows[2], * __restrict d = rows[3];
  const T wa = weights[0], wb = weights[1], wc = weights[2], wd = weights[3];
  constexpr std::int64_t kLine = std::int64_t(64 / sizeof(T));
  std::int64_t i = 0;
  for (; i + kLine <= n; i += kLine) {
    for (int r = 0; r < 4; ++r) __builtin_prefetch(next[r] + i, 0, 2);
    for (std::int64_t l = i; l < i + kLine; ++l) out[l] = (((out[l] + wa * a[l]) + wb * b[l]) + wc * c[l]) + wd * d[l];
  }
  for (; i < n; ++i) out[i] = (((out[i] + wa * a[i]) + wb * b[i]) + wc * c[i]) + wd * d[i];
}

// out = sum over rows, in order, of weights[r] * row(r); row(r) is the start of the r-th row's n elements, and after
// the last row comes the first row's next run.
template <class T, class Row>
FF_FN void add_rows(std::int64_t n, T* __restrict out, std::int64_t count, const T* weights, Row row) {
  for (std::int64_t i = 0; i < n; ++i) out[i] = T(0);
  std::int64_t r = 0;
  for (; r + 4 <= count; r += 4) {
    const T *rows[4], *next[4];
    for (std::int64_t q = 0; q < 4; ++q) {
      rows[q] = row(r + q);
      next[q] = r + q + 4 < count ? row(r + q + 4) : row((r + q + 4) % count) + n;
    }
    add_four_rows(n, out, rows, weights + r, next);
  }
  for (; r < count; ++r) {
    const T* __restrict a = row(r);
    const T wa = weights[r];
    for (std::int64_t i = 0; i < n; ++i) out[i] = out[i] + wa * a[i];
  }
}

template <class T>
void weigh_same(std::int64_t n, T* __restrict out, const void* deltas, std::int64_t stride, const T* weights,
                std::int64_t clients) {
  const T* first = static_cast<const T*>(deltas);
  add_rows(n, out, clients, weights, [&](std::int64_t r) { return first + r * stride; });
}

template <class T, void (*Widen)(std::int64_t, T*, const void*)>
void weigh_half(std::int64_t n, T* __restrict out, const void* deltas, std::int64_t stride, const T* weights,
                std::int64_t clients) {
  constexpr std::int64_t kWidened = 512;
  T wide[kWidened];
  for (std::int64_t i = 0; i < n; ++i) out[i] = T(0);
  for (std::int64_t c = 0; c < clients; ++c) {
    const Half* row = static_cast<const Half*>(deltas) + c * stride;
    for (std::int64_t begin = 0; begin < n; begin += kWidened) {
      const std::int64_t span = n - begin < kWidened ? n - begin : kWidened;
      Widen(span, wide, row + begin);
      for (std::int64_t i = 0; i < span; ++i) out[begin + i] = out[begin + i] + weights[c] * wide[i];
    }
  }
}

// As add_rows, of what the rows differ from x by.
template <class T>
FF_FN void add_moves(std::int64_t n, T* __restrict out, const T* const* rows, const T* __restrict x, const T* weights,
                     std::int64_t count) {
  for (std::int64_t i = 0; i < n; ++i) out[i] = T(0);
  std::int64_t r = 0;
  for (; r + 4 <= count; r += 4) {
    const T* __restrict a = rows[r], * __restrict b = rows[r + 1], * __restrict c = rows[r + 2], * __restrict d = rows[r + 3];
    const T wa = weights[r], wb = weights[r + 1], wc = weights[r + 2], wd = weights[r + 3];
    for (std::int64_t i = 0; i < n; ++i)
      out[i] = (((out[i] + wa * (a[i] - x[i])) + wb * (b[i] - x[i])) + wc * (c[i] - x[i])) + wd * (d[i] - x[i]);
  }
  for (; r < count; ++r) {
    const T* __restrict a = rows[r];
    const T wa = weights[r];
    for (std::int64_t i = 0; i < n; ++i) out[i] = out[i] + wa * (a[i] - x[i]);
  }
}

template <class T>
void weigh_moves(std::int64_t n, T* out, const T* const* rows, const T* x, const T* weights, std::int64_t clients) {
  if (x) return add_moves(n, out, rows, x, weights, clients);
  add_rows(n, out, clients, weights, [&](std::int64_t r) { return rows[r]; });
}

// ---- random numbers ------------------------------------------------------------------------------------------------

#if defined(__AVX512F__)
#define FF_VECTOR 64  // bytes of a register
#elif defined(__AVX2__)
#define FF_VECTOR 32
#else
#define FF_VECTOR 16
#endif
typedef Wide WideVector __attribute__((vector_size(FF_VECTOR)));
typedef Word WordVector __attribute__((vector_size(FF_VECTOR / 2)));
constexpr int kVectorWords = FF_VECTOR / 8;

FF_FN WideVector multiplied(WideVector a, Word b) {  // the lower halves of a by b
#if defined(__AVX512F__)
  return (WideVector)_mm512_maskz_mul_epu32(0xFF, (__m512i)a, _mm512_set1_epi64(b));
#elif defined(__AVX2__)
  return (WideVector)_mm256_mul_epu32((__m256i)a, _mm256_set1_epi64x(b));
#elif defined(__SSE2__)
  return (WideVector)_mm_mul_epu32((__m128i)a, _mm_set1_epi64x(b));
#else
  return (a & 0xFFFFFFFFull) * Wide(b);
#endif
}

// Two registers of words, because one would have to wait for its own products. Each word stands in the lower half of a
// 64-bit lane, where the multiplier reads it; what the upper halves hold never matters. So a round needs no shuffle:
// half a product is a shift, or nothing.
struct WordLanes {
  WideVector a, b;
};
constexpr int kWordLanes = 2 * kVectorWords;

FF_FN WordLanes product(WordLanes v, Word w) { return {multiplied(v.a, w), multiplied(v.b, w)}; }
FF_FN WordLanes upper_half(WordLanes v) { return {v.a >> 32, v.b >> 32}; }
FF_FN WordLanes lower_half(WordLanes v) { return v; }
FF_FN WordLanes operator^(WordLanes v, WordLanes w) { return {v.a ^ w.a, v.b ^ w.b}; }
FF_FN WordLanes operator^(WordLanes v, Word w) { return {v.a ^ Wide(w), v.b ^ Wide(w)}; }
FF_FN WordLanes same_word(Word w) { return {WideVector{} + Wide(w), WideVector{} + Wide(w)}; }
FF_FN WordLanes words_from(Word first) {
  WideVector count{};
  for (int l = 0; l < kVectorWords; ++l) count[l] = Wide(l);
  return {count + Wide(first), count + Wide(first) + Wide(kVectorWords)};
}
FF_FN void store_words(WordLanes v, Word* to) {
  const WordVector a = __builtin_convertvector(v.a, WordVector), b = __builtin_convertvector(v.b, WordVector);
  std::memcpy(to, &a, sizeof a);
  std::memcpy(to + kVectorWords, &b, sizeof b);
}

// The words of kLanes Philox blocks: word k of block l stands at w[k][l].
struct LaneWords {
  alignas(64) Word w[4][kLanes];
};

FF_FN void fill_words(const Stream& stream, Word client, Word block, LaneWords& to) {
  for (int at = 0; at < kLanes; at += kWordLanes) {
    const WordsOf<WordLanes> counter{
        {words_from(block + Word(at)), same_word(stream.step), same_word(client), same_word(stream.round)}};
    const WordsOf<WordLanes> words = philox(counter, stream.key0, stream.key1);
    for (int k = 0; k < 4; ++k) store_words(words.w[k], &to.w[k][at]);
  }
}

void client_word_blocks(const Stream& stream, const std::int64_t* clients, std::int64_t blocks, Word* out) {
  for (int at = 0; at < kClientLanes; at += kWordLanes) {
    WordLanes who;
    std::memcpy(&who.a, clients + at, sizeof who.a);
    std::memcpy(&who.b, clients + at + kVectorWords, sizeof who.b);
    for (std::int64_t block = 0; block < blocks; ++block) {
      const WordsOf<WordLanes> counter{{same_word(Word(block)), same_word(stream.step), who, same_word(stream.round)}};
      const WordsOf<WordLanes> words = philox(counter, stream.key0, stream.key1);
      for (int k = 0; k < 4; ++k) store_words(words.w[k], out + (4 * block + k) * kClientLanes + at);
    }
  }
}

// make(words, out) turns the words of kLanes blocks into their kLanes * PerBlock numbers.
template <int PerBlock, class T, class Make>
FF_FN void draw_blocks(const Stream& stream, Word client, Word block, std::int64_t n, T* out, Make make) {
  constexpr std::int64_t kNumbers = kLanes * PerBlock;
  LaneWords words;
  std::int64_t i = 0;
  for (; i + kNumbers <= n; i += kNumbers, block += kLanes) {
    fill_words(stream, client, block, words);
    make(words, out + i);
  }
  if (i == n) return;
  T last[kNumbers];
  fill_words(stream, client, block, words);
  make(words, last);
  std::memcpy(out + i, last, std::size_t(n - i) * sizeof(T));
}

void uniform_blocks(const Stream& stream, Word client, Word block, std::int64_t n, float* out) {
  draw_blocks<4>(stream, client, block, n, out, [](const LaneWords& words, float* __restrict numbers) {
    for (int l = 0; l < kLanes; ++l)
      for (int k = 0; k < 4; ++k) numbers[4 * l + k] = uniform_of(words.w[k][l]);
  });
}

void normal_blocks(const Stream& stream, Word client, Word block, std::int64_t n, float* out) {
  draw_blocks<4>(stream, client, block, n, out, [](const LaneWords& words, float* __restrict numbers) {
    for (int l = 0; l < kLanes; ++l) {
      float* four = numbers + 4 * l;
      normal_pair(words.w[0][l], words.w[1][l], four[0], four[1]);
      normal_pair(words.w[2][l], words.w[3][l], four[2], four[3]);
    }
  });
}

void sort_key_blocks(const Stream& stream, Word client, Word block, std::int64_t n, std::int64_t* out) {
  draw_blocks<2>(stream, client, block, n, out, [](const LaneWords& words, std::int64_t* __restrict keys) {
    for (int l = 0; l < kLanes; ++l)
      for (int k = 0; k < 2; ++k) keys[2 * l + k] = sort_key(words.w[2 * k][l], words.w[2 * k + 1][l]);
  });
}

// ---- the streaming probe -------------------------------------------------------------------------------------------

template <class T, int K, int J>
void probe_arrays(std::int64_t begin, std::int64_t end, const T* const* reads, T* const* updates) {
  const T* r[K > 0 ? K : 1];
  T* u[J];
  for (int k = 0; k < K; ++k) r[k] = reads[k];
  for (int j = 0; j < J; ++j) u[j] = updates[j];
#pragma GCC ivdep
  for (std::int64_t i = begin; i < end; ++i) {
    T sum = T(0);
    for (int k = 0; k < K; ++k) sum += r[k][i];
    for (int j = 0; j < J; ++j) u[j][i] = sum - u[j][i];  // neither grows nor fades into denormals
  }
}

template <class T>
void probe_block(std::int64_t begin, std::int64_t end, const T* const* reads, int k, T* const* updates, int j) {
  if (j == 1) {
    if (k == 0) return probe_arrays<T, 0, 1>(begin, end, reads, updates);
    if (k == 1) return probe_arrays<T, 1, 1>(begin, end, reads, updates);
    if (k == 2) return probe_arrays<T, 2, 1>(begin, end, reads, updates);
  }
  if (j == 2 && k == 1) return probe_arrays<T, 1, 2>(begin, end, reads, updates);
  if (j == 2 && k == 3) return probe_arrays<T, 3, 2>(begin, end, reads, updates);
  if (j == 3 && k == 1) return probe_arrays<T, 1, 3>(begin, end, reads, updates);
  if (j == 4 && k == 1) return probe_arrays<T, 1, 4>(begin, end, reads, updates);
  // Any other mix: span by span, as weighted sums are made.
  constexpr std::int64_t kSummed = 8192;
  constexpr int kMost = 1024;
  if (k > kMost) return;
  T sum[kSummed], ones[kMost];
  for (int a = 0; a < k; ++a) ones[a] = T(1);
  for (std::int64_t at = begin; at < end; at += kSummed) {
    const std::int64_t n = end - at < kSummed ? end - at : kSummed;
    add_rows(n, sum, k, ones, [&](std::int64_t r) { return reads[r] + at; });
    for (int b = 0; b < j; ++b)
      for (std::int64_t i = 0; i < n; ++i) updates[b][at + i] = sum[i] - updates[b][at + i];
  }
}

// ---- the table -----------------------------------------------------------------------------------------------------

template <class T, class Rule> void enter_server(VectorLoops<T>& b, ServerFormula f) {
  b.server[f][0][0] = server_block<T, Rule, false, false>;
  b.server[f][0][1] = server_block<T, Rule, false, Rule::has_m>;
  b.server[f][1][0] = server_block<T, Rule, true, false>;
  b.server[f][1][1] = server_block<T, Rule, true, Rule::has_m>;
}

template <class T, class Direction, int Source> void enter_cover(VectorLoops<T>& b, DirectionFormula f) {
  b.covered[f][Source][0] = covered_tile<T, Direction, Source, false>;
  b.covered[f][Source][1] = covered_tile<T, Direction, Source, true>;
  b.covered_squares[f][Source][0] = covered_squares_tile<T, Direction, Source, false>;
  b.covered_squares[f][Source][1] = covered_squares_tile<T, Direction, Source, true>;
}

template <class T, class Direction> void enter_covers(VectorLoops<T>& b, DirectionFormula f) {
  enter_cover<T, Direction, kFresh>(b, f);
  enter_cover<T, Direction, kFreshKept>(b, f);
  enter_cover<T, Direction, kFromCover>(b, f);
  enter_cover<T, Direction, kKept>(b, f);
}

template <class T, class Direction> void enter_direction(VectorLoops<T>& b, DirectionFormula f) {
  b.client[f][0] = client_block<T, Direction, false>;
  b.client[f][1] = client_block<T, Direction, true>;
  b.direction_squares[f][0] = direction_squares_block<T, Direction, false>;
  b.direction_squares[f][1] = direction_squares_block<T, Direction, true>;
  if constexpr (Direction::has_v) enter_covers<T, Direction>(b, f);
}

template <class T> VectorLoops<T> make_vector_loops() {
  VectorLoops<T> b{};
#define FF_ENTER(name, Formula) enter_server<T, Formula>(b, k##Formula);
  FF_SERVER_FORMULAS(FF_ENTER)
#undef FF_ENTER
#define FF_ENTER(name, Formula) enter_direction<T, Formula>(b, k##Formula);
  FF_DIRECTIONS(FF_ENTER)
#undef FF_ENTER
  b.cover_maxima = cover_maxima_tile<T>;
  b.measured_move = measured_move_block<T>;
  b.squares = squares_block<T>;
  b.change_squares = change_squares_block<T>;
  b.correct = correct_block<T>;
  b.multiply = multiply_block<T>;
  b.widen[kSame] = widen_same<T>;
  b.widen[kBfloat16] = widen_bfloat16<T>;
  b.widen[kFloat16] = widen_float16<T>;
  b.weigh[kSame] = weigh_same<T>;
  b.weigh_moves = weigh_moves<T>;
  b.weigh[kBfloat16] = weigh_half<T, widen_bfloat16<T>>;
  b.weigh[kFloat16] = weigh_half<T, widen_float16<T>>;
  b.trim[kSame] = trim_block<T, T, widen_same<T>>;
  b.trim[kBfloat16] = trim_block<T, Half, widen_bfloat16<T>>;
  b.trim[kFloat16] = trim_block<T, Half, widen_float16<T>>;
  b.raise = raise_block<T>;
  b.uniform = uniform_blocks;
  b.normal = normal_blocks;
  b.sort_keys = sort_key_blocks;
  b.words_of_clients = client_word_blocks;
  b.probe = probe_block<T>;
  return b;
}

}  // namespace

#define FF_JOIN2(a, b) a##b
#define FF_JOIN(a, b) FF_JOIN2(a, b)

const VectorLoops<float>& FF_JOIN(float_vector_loops_, FF_LEVEL)() {
  static const VectorLoops<float> loops = make_vector_loops<float>();
  return loops;
}

const VectorLoops<double>& FF_JOIN(double_vector_loops_, FF_LEVEL)() {
  static const VectorLoops<double> loops = make_vector_loops<double>();
  return loops;
}

}  // namespace fastfed
