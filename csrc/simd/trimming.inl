// Means without the extremes: columns of deltas sorted side by side, for vector_loops.inl, which is compiled once per
// SIMD level. Everything has internal linkage, as there.
//
// A float's bits, as a whole number with the magnitude of negative ones turned round, have the order of the numbers.
// Whole numbers have one order, NaN and -0.0 included, on every machine. They are sorted by a network, whose steps do
// not depend on them, so that a line of columns takes each step at once.
#pragma once

#include <algorithm>
#include <cstring>
#include <limits>

#include "simd/vector_loops.h"

namespace fastfed {
namespace {

template <class T>
constexpr int kLineColumns = int(64 / sizeof(T));  // columns sorted side by side: a line of the cache

template <class K> FF_FN K turned(K bits) {  // there and back
  return bits ^ ((bits >> (8 * sizeof(K) - 1)) & std::numeric_limits<K>::max());
}

template <class T> FF_FN SortKey<T> key_of(T value) {
  SortKey<T> bits;
  std::memcpy(&bits, &value, sizeof bits);
  return turned(bits);
}

template <class T> FF_FN T value_of(SortKey<T> key) {
  const SortKey<T> bits = turned(key);
  T value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

// Puts the smaller ones into `a`, the larger ones into `b`.
template <int Columns, class K> FF_FN void exchange(K* __restrict a, K* __restrict b) {
  for (int i = 0; i < Columns; ++i) {
    const K x = a[i], y = b[i];
    a[i] = x < y ? x : y;
    b[i] = x < y ? y : x;
  }
}

// Sorts every column of rows (count, Columns) by Batcher's merge exchange, which takes any count (Knuth, The Art of
// Computer Programming, volume 3, algorithm 5.2.2M): count * log(count)^2 / 4 exchanges.
template <int Columns, class K> void sort_columns(K* rows, std::int64_t count) {
  std::int64_t top = 1;
  while (2 * top < count) top *= 2;
  for (std::int64_t run = top; run > 0; run /= 2) {
    std::int64_t first = 0, distance = run;
    for (std::int64_t next = top;; next /= 2) {
      for (std::int64_t begin = first; begin < count - distance; begin += 2 * run) {
        const std::int64_t end = std::min(begin + run, count - distance);
        for (std::int64_t i = begin; i < end; ++i)
          exchange<Columns>(rows + i * Columns, rows + (i + distance) * Columns);
      }
      if (next == run) break;
      distance = next - run;
      first = run;
    }
  }
}

// The columns of one call as the rows of deltas have them, whatever their dtype.
template <class T, void (*Widen)(std::int64_t, T*, const void*), class E> struct DeltaRows {
  const E* first;
  std::int64_t stride, n;
  T wide[kMostTrimmed];

  const T* row(std::int64_t client) {
    if constexpr (sizeof(E) == sizeof(T)) return first + client * stride;
    Widen(n, wide, first + client * stride);
    return wide;
  }
};

// keys: (lines, clients, kLineColumns), so that a line's columns lie together. Behind the n columns keys are left
// alone.
template <class T, class Rows> void gather_keys(Rows& rows, std::int64_t clients, SortKey<T>* keys) {
  constexpr int kColumns = kLineColumns<T>;
  for (std::int64_t client = 0; client < clients; ++client) {
    const T* row = rows.row(client);
    SortKey<T>* to = keys + client * kColumns;
    std::int64_t begin = 0;
    for (; begin + kColumns <= rows.n; begin += kColumns, to += clients * kColumns)
      for (int i = 0; i < kColumns; ++i) to[i] = key_of(row[begin + i]);
    for (std::int64_t i = begin; i < rows.n; ++i) to[i - begin] = key_of(row[i]);
  }
}

// What stays of a column: the least and the largest key, how many keys reach them from outside, the sum between them.
template <class T> struct KeptColumns {
  alignas(64) SortKey<T> low[kMostTrimmed], high[kMostTrimmed];
  alignas(64) SortKey<T> up_to_low[kMostTrimmed], from_high[kMostTrimmed];
  alignas(64) T inner[kMostTrimmed];
};

// Adds a row to the sums; a NaN is added wherever it lies, which makes the sum NaN.
template <class T> FF_FN void add_kept(std::int64_t n, KeptColumns<T>& kept, const T* __restrict row) {
  for (std::int64_t i = 0; i < n; ++i) {
    const T value = row[i];
    const SortKey<T> key = key_of(value), low = kept.low[i], high = kept.high[i];
    kept.up_to_low[i] += key <= low;
    kept.from_high[i] += key >= high;
    kept.inner[i] += ((key > low) & (key < high)) | (value != value) ? value : T(0);
  }
}

template <class T, class E, void (*Widen)(std::int64_t, T*, const void*)>
void trim_block(std::int64_t n, T* out, const void* deltas, std::int64_t stride, std::int64_t clients,
                std::int64_t trim, SortKey<T>* keys) {
  constexpr int kColumns = kLineColumns<T>;
  DeltaRows<T, Widen, E> rows{static_cast<const E*>(deltas), stride, n, {}};
  KeptColumns<T> kept = {};
  gather_keys<T>(rows, clients, keys);
  for (std::int64_t begin = 0; begin < n; begin += kColumns, keys += clients * kColumns) {
    sort_columns<kColumns>(keys, clients);
    std::memcpy(kept.low + begin, keys + trim * kColumns, 64);
    std::memcpy(kept.high + begin, keys + (clients - 1 - trim) * kColumns, 64);
  }
  for (std::int64_t client = 0; client < clients; ++client) add_kept(n, kept, rows.row(client));
  for (std::int64_t i = 0; i < n; ++i) {
    const T mean = mean_of_kept(kept.inner[i], value_of<T>(kept.low[i]), value_of<T>(kept.high[i]),
                                T(kept.up_to_low[i] - trim), T(kept.from_high[i] - trim), T(clients - 2 * trim));
    // One NaN for all: which of two is passed on, compilers decide.
    out[i] = kept.inner[i] == kept.inner[i] ? mean : std::numeric_limits<T>::quiet_NaN();
  }
}

}  // namespace
}  // namespace fastfed
