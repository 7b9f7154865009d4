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

// What a thread owns of a sum over clients: a quad where accesses are wide, else one coordinate, so that neighbouring
// threads read neighbouring numbers, and short vectors are cut finely enough to reach all of a card. The launch says
// how many threads a block has.
template <bool Wide> FF_DEVICE Span summand_of_thread(long long d) {
  const long long thread = (long long)blockIdx.x * blockDim.x + threadIdx.x;
  if constexpr (Wide) return span_of(thread, d);
  return {thread, thread < d ? 1 : 0};
}

// Adds the deltas of COUNT clients in their order; all of them are on their way from memory at once.
template <bool Wide, int COUNT, class E>
FF_DEVICE void add_clients(Quad& sum, const Deltas<E>& deltas, long long first, long long at) {
  Quad delta[COUNT];
  float weight[COUNT];
  const E* row = deltas.rows + first * deltas.d;
  FF_UNROLL for (int i = 0; i < COUNT; ++i, row += deltas.d) {
    delta[i] = load<Wide>(row, at, Wide ? QUAD : 1);
    weight[i] = deltas.weights[first + i];
  }
  FF_UNROLL for (int i = 0; i < COUNT; ++i) {
    FF_UNROLL for (int k = 0; k < QUAD; ++k) sum.e[k] = sum.e[k] + weight[i] * delta[i].e[k];
  }
}

// The weighted sum of what a thread owns, clients in their order.
template <bool Wide, class E> FF_DEVICE Quad weighted_sum_at(const Deltas<E>& deltas, long long at) {
  constexpr int AHEAD = Wide ? IN_FLIGHT / QUAD : IN_FLIGHT, TAIL = 4;
  Quad sum = {};
  long long client = 0;
  for (; client + AHEAD <= deltas.clients; client += AHEAD) add_clients<Wide, AHEAD>(sum, deltas, client, at);
  for (; client + TAIL <= deltas.clients; client += TAIL) add_clients<Wide, TAIL>(sum, deltas, client, at);
  for (; client < deltas.clients; ++client) add_clients<Wide, 1>(sum, deltas, client, at);
  return sum;
}

}  // namespace fastfed

// A kernel that sums over clients: a thread has many numbers on their way, so it needs more registers than others.
#define FF_SUM_KERNEL(name, parameters) FF_KERNEL_OF(fastfed::THREADS, fastfed::SUM_BLOCKS_PER_SM, name, parameters)

// MAKE(..., suffix, dtype, wide) for every dtype of deltas, wide and not.
#define FF_FOR_EACH_DELTA(MAKE, ...)                        \
  MAKE(__VA_ARGS__, float32, float, false)                  \
  MAKE(__VA_ARGS__, float32_wide, float, true)              \
  MAKE(__VA_ARGS__, bfloat16, fastfed::BFloat16, false)     \
  MAKE(__VA_ARGS__, bfloat16_wide, fastfed::BFloat16, true) \
  MAKE(__VA_ARGS__, float16, fastfed::Float16, false)       \
  MAKE(__VA_ARGS__, float16_wide, fastfed::Float16, true)
