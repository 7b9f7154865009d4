// The mean of a batch of deltas without the extremes of every coordinate.
//
// A thread owns one coordinate. It finds the bounds of what is kept bit by bit: both at once, one pass over the clients
// for each bit of the deltas' dtype. Neighbouring threads read neighbouring numbers, and the passes find them in cache.
#include "cuda/deltas.h"

namespace fastfed {

// A number's bits as a whole number that has the numbers' order: the magnitude of negative ones is turned round.
FF_DEVICE int turned(int bits, int magnitude) { return bits ^ ((bits >> 31) & magnitude); }
FF_DEVICE int key_of(float value) { return turned(__float_as_int(value), 0x7FFFFFFF); }
FF_DEVICE int key_of(BFloat16 value) { return turned(short(value.bits), 0x7FFF); }
FF_DEVICE int key_of(Float16 value) { return turned(short(value.bits), 0x7FFF); }

FF_DEVICE float value_of(int key, float) { return __int_as_float(turned(key, 0x7FFFFFFF)); }
FF_DEVICE float value_of(int key, BFloat16) { return widen(BFloat16{(unsigned short)turned(key, 0x7FFF)}); }
FF_DEVICE float value_of(int key, Float16) { return widen(Float16{(unsigned short)turned(key, 0x7FFF)}); }

// The deltas of one coordinate.
template <class E> struct Column {
  const E* first;
  long long clients, stride;

  // Calls use(value) for every client in order; a few are on their way from memory at once.
  template <class Use> __device__ __forceinline__ void for_clients(Use use) const {
    constexpr int AHEAD = 8;
    long long client = 0;
    for (; client + AHEAD <= clients; client += AHEAD) {
      E value[AHEAD];
      FF_UNROLL for (int i = 0; i < AHEAD; ++i) value[i] = first[(client + i) * stride];
      FF_UNROLL for (int i = 0; i < AHEAD; ++i) use(value[i]);
    }
    for (; client < clients; ++client) use(first[client * stride]);
  }
};

struct Bounds {
  int low, high;
};

// The keys that have `trim` others below them, or above them: the largest whole numbers with no more keys below than
// that, found from the highest bit down.
template <class E> FF_DEVICE Bounds bounds_of(const Column<E>& column, long long trim) {
  constexpr int BITS = 8 * int(sizeof(E));
  constexpr int LEAST = int(~0u << (BITS - 1));
  Bounds found = {LEAST, LEAST};
  for (int bit = BITS - 1; bit >= 0; --bit) {
    const Bounds tried = {int(unsigned(found.low) + (1u << bit)), int(unsigned(found.high) + (1u << bit))};
    int below_low = 0, below_high = 0;
    column.for_clients([&](E value) {
      const int key = key_of(value);
      below_low += key < tried.low;
      below_high += key < tried.high;
    });
    if (below_low <= trim) found.low = tried.low;
    if (below_high <= column.clients - 1 - trim) found.high = tried.high;
  }
  return found;
}

template <class E> FF_DEVICE float trimmed_mean_of(const Column<E>& column, long long trim) {
  const Bounds kept = bounds_of(column, trim);
  int up_to_low = 0, from_high = 0;
  float inner = 0.0f;
  column.for_clients([&](E value) {
    const int key = key_of(value);
    const float wide = widen(value);
    up_to_low += key <= kept.low;
    from_high += key >= kept.high;
    if ((key > kept.low && key < kept.high) || wide != wide) inner = inner + wide;  // a NaN wherever it lies
  });
  return mean_of_kept(inner, value_of(kept.low, E{}), value_of(kept.high, E{}), float(up_to_low - trim),
                      float(from_high - trim), float(column.clients - 2 * trim));
}

template <class E>
FF_DEVICE void trimmed_mean(const E* rows, long long clients, long long d, long long trim, float* out) {
  const Span span = summand_of_thread<false>(d);
  if (span.count > 0) out[span.at] = trimmed_mean_of(Column<E>{rows + span.at, clients, d}, trim);
}

}  // namespace fastfed

#define MAKE(suffix, E)                                                                                               \
  FF_SUM_KERNEL(trimmed_mean_##suffix, (const E* rows, long long clients, long long d, long long trim, float* out)) { \
    fastfed::trimmed_mean(rows, clients, d, trim, out);                                                               \
  }
MAKE(float32, float)
MAKE(bfloat16, fastfed::BFloat16)
MAKE(float16, fastfed::Float16)
#undef MAKE
