// The loops behind pools.h, compiled once per SIMD level with FF_LEVEL naming the level.
#include "simd/pools.h"

#include <algorithm>

#include "simd/vectors.inl"

namespace fastfed {
namespace {

// yes where value > top or value is NaN, else no: as torch compares
inline Vec where_larger(Vec value, Vec top, Vec yes, Vec no) {
#if defined(__AVX512F__)
  const __mmask16 larger = _mm512_cmp_ps_mask(value, top, _CMP_GT_OQ) | _mm512_cmp_ps_mask(value, value, _CMP_UNORD_Q);
  return _mm512_mask_blend_ps(larger, no, yes);
#elif defined(__AVX2__)
  const __m256 larger = _mm256_or_ps(_mm256_cmp_ps(value, top, _CMP_GT_OQ), _mm256_cmp_ps(value, value, _CMP_UNORD_Q));
  return _mm256_blendv_ps(no, yes, larger);
#else
  for (int i = 0; i < kWidth; ++i) no[i] = value[i] > top[i] || value[i] != value[i] ? yes[i] : no[i];
  return no;
#endif
}

// given where both are equal, else 0
inline Vec where_equal(Vec a, Vec b, Vec given) {
#if defined(__AVX512F__)
  return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(a, b, _CMP_EQ_OQ), given);
#elif defined(__AVX2__)
  return _mm256_and_ps(_mm256_cmp_ps(a, b, _CMP_EQ_OQ), given);
#else
  for (int i = 0; i < kWidth; ++i) given[i] = a[i] == b[i] ? given[i] : 0.0f;
  return given;
#endif
}

// n channels, kWidth if Whole.
template <bool Whole> Vec take(const float* from, int n) { return Whole ? load(from) : load_part(from, n); }
template <bool Whole> void put(float* to, Vec v, int n) { Whole ? store(to, v) : store_part(to, v, n); }

template <bool Whole>
void largest_of(const Grid& g, const Window& down, const Window& across, const float* channel, int n, float* best,
                float* which) {
  Vec top = take<Whole>(channel + (down.begin * g.in_width + across.begin) * g.channels, n), winner = {};
  float number = 0.0f;
  for (Size y = down.begin; y < down.end; ++y)
    for (Size x = across.begin; x < across.end; ++x, ++number) {
      const Vec value = take<Whole>(channel + (y * g.in_width + x) * g.channels, n);
      winner = where_larger(value, top, Vec{} + number, winner);
      top = where_larger(value, top, value, top);
    }
  put<Whole>(best, top, n);
  put<Whole>(which, winner, n);
}

template <bool Whole>
void give_to(const Grid& g, const Window& down, const Window& across, const float* dy, const float* which, int n,
             float* channel) {
  const Vec given = take<Whole>(dy, n), winner = take<Whole>(which, n);
  float number = 0.0f;
  for (Size y = down.begin; y < down.end; ++y)
    for (Size x = across.begin; x < across.end; ++x, ++number) {
      float* to = channel + (y * g.in_width + x) * g.channels;
      put<Whole>(to, take<Whole>(to, n) + where_equal(winner, Vec{} + number, given), n);
    }
}

// work(window down, window across, first channel, channels, place in the output) for every vector of channels
template <class Work> void for_vectors(const Grid& g, Work work) {
  Size pixel = 0;
  for (Size row = 0; row < g.out_height; ++row)
    for (Size col = 0; col < g.out_width; ++col, ++pixel)
      for (Size c = 0; c < g.channels; c += kWidth)
        work(g.down[row], g.across[col], c, int(std::min<Size>(kWidth, g.channels - c)), pixel * g.channels + c);
}

void largest(const Grid& g, const float* image, float* best, float* which) {
  for_vectors(g, [&](const Window& down, const Window& across, Size c, int n, Size to) {
    n == kWidth ? largest_of<true>(g, down, across, image + c, n, best + to, which + to)
                : largest_of<false>(g, down, across, image + c, n, best + to, which + to);
  });
}

void give_to_largest(const Grid& g, const float* dy, const float* which, float* dx) {
  for_vectors(g, [&](const Window& down, const Window& across, Size c, int n, Size from) {
    n == kWidth ? give_to<true>(g, down, across, dy + from, which + from, n, dx + c)
                : give_to<false>(g, down, across, dy + from, which + from, n, dx + c);
  });
}

}  // namespace

const Pools& FF_JOIN(pools_, FF_LEVEL)() {
  static const Pools table{largest, give_to_largest};
  return table;
}

}  // namespace fastfed
