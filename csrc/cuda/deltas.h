// Deltas in their three dtypes, and their weighted sum in registers: shared by weighted_sum.cu and the server kernels.
#pragma once

#include "cuda/grid.h"

namespace fastfed {

struct BFloat16 {
  unsigned short bits;
};
struct Float16 {
  unsigned short bits;
};

FF_DEVICE float widen(BFloat16 value) { return __int_as_float(int(unsigned(value.bits) << 16)); }

// Exact for every float16: shifted into place its exponent is 112 too small, which one multiplication mends (subnormal
// numbers included: kernels are compiled without flushing them); infinities and NaN get float32's largest exponent.
FF_DEVICE float widen(Float16 value) {
  const unsigned sign = (value.bits & 0x8000u) << 16, rest = (value.bits & 0x7FFFu) << 13;
  const float finite = __int_as_float(int(rest)) * 0x1p112f;
  const unsigned magnitude = rest < 0x0F800000u ? unsigned(__float_as_int(finite)) : rest | 0x7F800000u;
  return __int_as_float(int(sign | magnitude));
}

// A batch of deltas (clients, d) with one weight per client.
template <class E> struct Deltas {
  const E* rows;
  const float* weights;
  long long clients, d;
};

// The weighted sum of one quad, clients in their order; several rows are in flight at a time.
template <bool Wide, class E> FF_DEVICE Quad weighted_quad(const Deltas<E>& deltas, const Span& span) {
  Quad sum = {};
  const E* row = deltas.rows;
  FF_UNROLL_BY(4) for (long long client = 0; client < deltas.clients; ++client, row += deltas.d) {
    const Quad delta = load<Wide>(row, span.at, span.count);
    const float weight = deltas.weights[client];
    FF_UNROLL for (int k = 0; k < QUAD; ++k) sum.e[k] = sum.e[k] + weight * delta.e[k];
  }
  return sum;
}

}  // namespace fastfed

// MAKE(..., suffix, dtype, wide) for every dtype of deltas, wide and not.
#define FF_FOR_EACH_DELTA(MAKE, ...)                        \
  MAKE(__VA_ARGS__, float32, float, false)                  \
  MAKE(__VA_ARGS__, float32_wide, float, true)              \
  MAKE(__VA_ARGS__, bfloat16, fastfed::BFloat16, false)     \
  MAKE(__VA_ARGS__, bfloat16_wide, fastfed::BFloat16, true) \
  MAKE(__VA_ARGS__, float16, fastfed::Float16, false)       \
  MAKE(__VA_ARGS__, float16_wide, fastfed::Float16, true)
