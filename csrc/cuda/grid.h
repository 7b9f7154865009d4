// What every grid kernel shares: how coordinates are dealt to threads, how they are read and written, and block sums.
//
// A thread owns quads: four neighbouring coordinates of one client's row. "Wide" kernels move a quad in one access (128
// bits of float32); they need rows of a length divisible by four that start on a 16-byte border. The others move it
// coordinate by coordinate. Both own the same quads, so sums have one order, whatever the alignment.
// No system header is included: NVRTC reads this file as it is, and so does g++ behind host.h.
#pragma once

#include "rules.h"

#ifndef FF_KERNEL  // host.h has its own, which also notes the kernel's name and signature
#define FF_KERNEL_OF(threads, blocks_per_sm, name, parameters) \
  extern "C" __global__ void __launch_bounds__(threads, blocks_per_sm) name parameters
#define FF_KERNEL(name, parameters) FF_KERNEL_OF(fastfed::THREADS, fastfed::BLOCKS_PER_SM, name, parameters)
#define FF_PRAGMA(text) _Pragma(#text)
#define FF_UNROLL FF_PRAGMA(unroll)
#define FF_UNROLL_BY(times) FF_PRAGMA(unroll times)
#endif
#define FF_DEVICE static __device__ __forceinline__

namespace fastfed {

// The one place of these sizes: kernels/cuda/sources.py reads them from here.
constexpr int THREADS = 256;      // of every block, but for sums over clients of short vectors: at most
constexpr int BLOCKS_PER_SM = 4;  // at least so many fit: up to 64 registers per thread, enough for nearly every kernel
constexpr int QUAD = 4;           // coordinates of one 128-bit access
constexpr int SUM_QUADS = 4;      // quads per thread where a block sum has to be worth its while
constexpr int ROW_STEPS = 16;     // rows per thread of an SM3 tile

constexpr int IN_FLIGHT = 32;         // numbers of a thread on their way at once in a sum over clients
constexpr int SUM_BLOCKS_PER_SM = 2;  // which takes up to 128 registers per thread

constexpr int DENSE_BLOCKS_PER_SM = 2;  // a dense step's tiles take up to 128 registers per thread
constexpr int DENSE_OUTPUTS = 64;       // of one of its blocks
constexpr int FEW_ROWS = 32;            // of a batch: it is compiled for up to so many
constexpr int MANY_ROWS = 64;           // and for up to so many

constexpr int LANES = 32;  // of a warp
constexpr unsigned ALL_LANES = 0xFFFFFFFFu;

// ---- clients and quads ---------------------------------------------------------------------------------------------

// Clients fill the grid's y and z: one axis ends at 65535.
FF_DEVICE long long client_of_block() { return (long long)blockIdx.z * gridDim.y + blockIdx.y; }

struct Span {
  long long at;  // the first coordinate of a quad
  int count;     // how many of the four exist; not positive behind the end of the row
};

FF_DEVICE Span span_of(long long quad, long long d) {
  const long long at = quad * QUAD, rest = d - at;
  return {at, rest < QUAD ? int(rest) : QUAD};
}

FF_DEVICE Span quad_of_thread(long long d) { return span_of((long long)blockIdx.x * THREADS + threadIdx.x, d); }

FF_DEVICE Span sum_quad_of_thread(int i, long long d) {
  return span_of(((long long)blockIdx.x * SUM_QUADS + i) * THREADS + threadIdx.x, d);
}

// ---- reading and writing -------------------------------------------------------------------------------------------

template <class E> struct alignas(QUAD * sizeof(E)) Pack {
  E e[QUAD];
};
using Quad = Pack<float>;

FF_DEVICE float widen(float value) { return value; }

// Wide accesses go to a multiple of four already; clearing the low bits tells the compiler, which else splits them.
FF_DEVICE long long whole_quad(long long index) { return index & ~(long long)(QUAD - 1); }

template <bool Wide, class E> FF_DEVICE Quad load(const E* from, long long index, int count) {
  Quad quad = {};
  if constexpr (Wide) {
    const Pack<E> pack = *reinterpret_cast<const Pack<E>*>(from + whole_quad(index));
    FF_UNROLL for (int k = 0; k < QUAD; ++k) quad.e[k] = widen(pack.e[k]);
  } else {
    FF_UNROLL for (int k = 0; k < QUAD; ++k) {
      if (k < count) quad.e[k] = widen(from[index + k]);
    }
  }
  return quad;
}

template <bool Wide> FF_DEVICE void store(float* to, long long index, int count, const Quad& quad) {
  if constexpr (Wide) {
    *reinterpret_cast<Quad*>(to + whole_quad(index)) = quad;
  } else {
    FF_UNROLL for (int k = 0; k < QUAD; ++k) {
      if (k < count) to[index + k] = quad.e[k];
    }
  }
}

// ---- sums ----------------------------------------------------------------------------------------------------------

FF_DEVICE double sum_of_squares(const Quad& quad, int count) {
  double sum = 0.0;
  FF_UNROLL for (int k = 0; k < QUAD; ++k) {
    if (k < count) sum += double(quad.e[k]) * double(quad.e[k]);
  }
  return sum;
}

FF_DEVICE double warp_sum(double value) {
  FF_UNROLL for (int offset = LANES / 2; offset > 0; offset /= 2) value += __shfl_down_sync(ALL_LANES, value, offset);
  return value;
}

// The sum over the block, in thread 0; every thread of the block must call it, once per kernel.
FF_DEVICE double block_sum(double value) {
  __shared__ double of_warp[THREADS / LANES];
  const int lane = threadIdx.x % LANES, warp = threadIdx.x / LANES;
  value = warp_sum(value);
  if (lane == 0) of_warp[warp] = value;
  __syncthreads();
  if (warp > 0) return 0.0;
  return warp_sum(lane < THREADS / LANES ? of_warp[lane] : 0.0);
}

// Partial sums lie as (clients, blocks); `fold_squares` and `fold_norms` (norms.cu) add them up.
FF_DEVICE void keep_partial(double* partials, long long client, double sum) {
  sum = block_sum(sum);
  if (threadIdx.x == 0) partials[client * gridDim.x + blockIdx.x] = sum;
}

}  // namespace fastfed
