// Norms by partial sums per chunk, added in order.
#include "kernels/norms.h"

#include "kernels/parallel.h"
#include "simd/simd.h"

namespace fastfed {

template <class T> void norms(std::int64_t clients, std::int64_t d, const T* x, double* out, int threads) {
  const auto squares = vector_loops<T>().squares;
  sum_chunks(clients, d, threads, out, [&](std::int64_t client, std::int64_t begin, std::int64_t n) {
    return squares(n, x + client * d + begin);
  });
  for (std::int64_t client = 0; client < clients; ++client) out[client] = root(out[client]);
}

template <class T> void clip(std::int64_t clients, std::int64_t d, T* x, double limit, double* out, int threads) {
  norms<T>(clients, d, x, out, threads);
  const auto multiply = vector_loops<T>().multiply;
  const std::int64_t chunks = chunks_of(d);
  for_tasks(clients * chunks, threads, [&](std::int64_t task, int) {
    const std::int64_t client = task / chunks, begin = task % chunks * kChunk;
    const double scale = clip_scale(out[client], limit);
    if (scale != 1.0) multiply(std::min(kChunk, d - begin), x + client * d + begin, T(scale));
  });
}

#define FF_INSTANTIATE(T)                                                     \
  template void norms<T>(std::int64_t, std::int64_t, const T*, double*, int); \
  template void clip<T>(std::int64_t, std::int64_t, T*, double, double*, int);
FF_INSTANTIATE(float)
FF_INSTANTIATE(double)

}  // namespace fastfed
