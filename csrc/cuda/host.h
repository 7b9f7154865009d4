// CUDA's names for a plain C++17 compiler: put in front of a .cu file (g++ -x c++ -include cuda/host.h), they let the
// very kernel code run on the CPU. host.cpp executes it: grid, block, barriers and shuffles. For tests; exact, slow.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstring>
#include <functional>
#include <utility>
#include <vector>

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(threads)
#define __shared__ static  // blocks run one after the other, so the block's memory is everybody's

#define FF_UNROLL
#define FF_UNROLL_BY(times)
#define FF_KERNEL_OF(threads, blocks_per_sm, name, parameters) FF_KERNEL(name, parameters)
#define FF_KERNEL(name, parameters)                                       \
  extern "C" void name parameters;                                        \
  static const fastfed::host::Registered registered_##name(#name, &name); \
  extern "C" void name parameters

struct Dim3 {
  unsigned x, y, z;
};
extern Dim3 threadIdx, blockIdx, blockDim, gridDim;

namespace fastfed::host {

// A kernel as the launcher sees it: how to call it with an array of pointers to its arguments, and their sizes.
struct Kernel {
  std::function<void(void**)> call;
  std::vector<std::size_t> sizes;
};

void add_kernel(const char* name, Kernel kernel);

template <class... Arguments, std::size_t... I>
Kernel unpacked(void (*kernel)(Arguments...), std::index_sequence<I...>) {
  return {[kernel](void** arguments) { kernel(*static_cast<Arguments*>(arguments[I])...); }, {sizeof(Arguments)...}};
}

struct Registered {
  template <class... Arguments> Registered(const char* name, void (*kernel)(Arguments...)) {
    add_kernel(name, unpacked(kernel, std::index_sequence_for<Arguments...>{}));
  }
};

void barrier(const char* file, int line);

// Hands `value` (8 bytes) to the warp and takes that of `lane` instead; its own if there is no such lane.
void exchange(void* value, unsigned mask, int lane, const char* file, int line);
int lane_of_thread();

template <class T> T shuffled(unsigned mask, T value, int lane, const char* file, int line) {
  static_assert(sizeof(T) <= 8, "shuffles move 4 or 8 bytes");
  unsigned char bytes[8] = {};
  std::memcpy(bytes, &value, sizeof(T));
  exchange(bytes, mask, lane, file, line);
  std::memcpy(&value, bytes, sizeof(T));
  return value;
}

}  // namespace fastfed::host

#define __syncthreads() fastfed::host::barrier(__FILE__, __LINE__)
#define __shfl_down_sync(mask, value, delta) \
  fastfed::host::shuffled(mask, value, fastfed::host::lane_of_thread() + int(delta), __FILE__, __LINE__)
#define __shfl_xor_sync(mask, value, bits) \
  fastfed::host::shuffled(mask, value, fastfed::host::lane_of_thread() ^ int(bits), __FILE__, __LINE__)

inline int atomicMax(int* address, int value) {
  const int old = *address;
  if (value > old) *address = value;
  return old;
}

inline int __float_as_int(float value) {
  int bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

inline float __int_as_float(int bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

inline float __fmaf_rn(float a, float b, float c) { return std::fma(a, b, c); }
