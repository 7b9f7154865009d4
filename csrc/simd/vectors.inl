// The vectors of one SIMD level, for files that are compiled once per level with FF_LEVEL naming it.
#pragma once

#if defined(__AVX2__)
#include <immintrin.h>
#endif

#include <cstdint>

#define FF_JOIN2(a, b) a##b
#define FF_JOIN(a, b) FF_JOIN2(a, b)

namespace fastfed {
namespace {

using Size = std::int64_t;

#if defined(__AVX512F__)
constexpr int kWidth = 16;
#elif defined(__AVX2__)
constexpr int kWidth = 8;
#else
constexpr int kWidth = 4;
#endif

typedef float Vec __attribute__((vector_size(kWidth * 4)));
typedef float Loose __attribute__((vector_size(kWidth * 4), aligned(4), may_alias));

inline Vec load(const float* from) { return *reinterpret_cast<const Loose*>(from); }
inline void store(float* to, Vec v) { *reinterpret_cast<Loose*>(to) = v; }

// The first n < kWidth elements; zeros behind them.
inline Vec load_part(const float* from, int n) {
#if defined(__AVX512F__)
  return _mm512_maskz_loadu_ps(__mmask16((1u << n) - 1u), from);
#elif defined(__AVX2__)
  const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  return _mm256_maskload_ps(from, _mm256_cmpgt_epi32(_mm256_set1_epi32(n), lane));
#else
  Vec v = {};
  for (int i = 0; i < n; ++i) v[i] = from[i];
  return v;
#endif
}

inline void store_part(float* to, Vec v, int n) {
#if defined(__AVX512F__)
  _mm512_mask_storeu_ps(to, __mmask16((1u << n) - 1u), v);
#elif defined(__AVX2__)
  const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  _mm256_maskstore_ps(to, _mm256_cmpgt_epi32(_mm256_set1_epi32(n), lane), v);
#else
  for (int i = 0; i < n; ++i) to[i] = v[i];
#endif
}

}  // namespace
}  // namespace fastfed
