// Philox4x32-10: counter-based random numbers, the same stream on every backend. The twin is kernels/philox.py, which
// also says how seed, purpose, round, client and step make key and counter. No header is included: NVRTC reads this as
// it is.
//
// Salmon, Moraes, Dror, Shaw: Parallel Random Numbers: As Easy as 1, 2, 3 (SC 2011).
#pragma once

#include "rules.h"  // FF_FN, root

namespace fastfed {

using Word = unsigned int;
using Wide = unsigned long long;

// Four words, or four vectors of them: W is Word, or a type of the CPU's SIMD loops that holds several.
template <class W> struct WordsOf {
  W w[4];
};
using Words = WordsOf<Word>;

// A stream without its client: the key of seed and purpose, and two words of the counter.
struct Stream {
  Word key0, key1, step, round;
};

// ---- words ---------------------------------------------------------------------------------------------------------

FF_FN Wide product(Word a, Word b) { return Wide(a) * b; }
FF_FN Word upper_half(Wide a) { return Word(a >> 32); }
FF_FN Word lower_half(Wide a) { return Word(a); }

template <class W> FF_FN WordsOf<W> philox_round(const WordsOf<W>& c, Word k0, Word k1) {
  const auto product0 = product(c.w[0], 0xD2511F53u), product1 = product(c.w[2], 0xCD9E8D57u);
  return {{upper_half(product1) ^ c.w[1] ^ k0, lower_half(product1), upper_half(product0) ^ c.w[3] ^ k1,
           lower_half(product0)}};
}

template <class W> FF_FN WordsOf<W> philox(WordsOf<W> c, Word k0, Word k1) {
  for (int i = 0; i < 9; ++i) {
    c = philox_round(c, k0, k1);
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return philox_round(c, k0, k1);
}

// ---- numbers -------------------------------------------------------------------------------------------------------

FF_FN float uniform_of(Word word) { return float(word >> 8) * 0x1p-24f; }

FF_FN long long sort_key(Word high, Word low) { return (long long)((Wide(high) << 31) | (low >> 1)); }

#if defined(__CUDACC__) || defined(__CUDACC_RTC__)
FF_FN Word bits_of(float a) { return __float_as_uint(a); }
FF_FN float float_of(Word bits) { return __uint_as_float(bits); }
#else
FF_FN Word bits_of(float a) {
  Word bits;
  __builtin_memcpy(&bits, &a, sizeof bits);
  return bits;
}
FF_FN float float_of(Word bits) {
  float a;
  __builtin_memcpy(&a, &bits, sizeof a);
  return a;
}
#endif

// The natural logarithm of a normal number, within 1 unit in the last place: a = 2^exponent * (1 + f) with 1 + f in
// [sqrt(1/2), sqrt(2)), and log(1 + f) = f - f^2 / 2 + f^3 * (minimax polynomial, 2^-27). Without branches, so that a
// loop over lanes becomes SIMD; a library's logarithm would also differ from platform to platform.
FF_FN float log_of(float a) {
  constexpr Word kRootHalf = 0x3F3504F3u;  // the bits of sqrt(1/2)
  const Word above = bits_of(a) - kRootHalf;
  const float exponent = float(int(above) >> 23), f = float_of((above & 0x007FFFFFu) + kRootHalf) - 1.0f, f2 = f * f;
  float p = -0.0763449519522f;
  p = p * f + 0.12761575403f;
  p = p * f - 0.131601820837f;
  p = p * f + 0.142017582407f;
  p = p * f - 0.166233574119f;
  p = p * f + 0.20001226866f;
  p = p * f - 0.250008210318f;
  p = p * f + 0.333333317079f;
  // log(2) in two pieces, the first of nine bits: its product with the exponent is exact.
  const float rest = (p * (f * f2) + exponent * -2.12194440055e-4f) - 0.5f * f2;
  return (f + rest) + exponent * 0.693359375f;
}

struct Turn {
  float cosine, sine;
};

// Cosine and sine of 2 pi u for u = ticks * 2^-24, ticks < 2^24, within 2 units in the last place. Taking the nearest
// quarter turn off is exact in whole numbers; what is left, t in [-1/8, 1/8], goes through minimax polynomials (2^-28
// and 2^-34).
FF_FN Turn turn_of(Word ticks) {
  const Word quarter = (ticks + (1u << 21)) >> 22;
  const float t = float(int(ticks) - int(quarter << 22)) * 0x1p-24f, t2 = t * t;
  float s = -75.4533965007f;
  s = s * t2 + 81.5939369576f;
  s = s * t2 - 41.3416731616f;
  s = t * 6.28318530718f + t * (s * t2 - 1.74845560007e-7f);  // 2 pi in two pieces
  float c = 59.2459642762f;
  c = c * t2 - 85.4437417326f;
  c = c * t2 + 64.9393264717f;
  c = c * t2 - 19.7392086937f;
  c = c * t2 + 1.0f;
  const bool odd = (quarter & 1u) != 0;
  const float cosine = odd ? s : c, sine = odd ? c : s;
  // A half turn changes the sign of both, an odd quarter turn that of the cosine.
  return {float_of(bits_of(cosine) ^ (((quarter + 1u) & 2u) << 30)), float_of(bits_of(sine) ^ ((quarter & 2u) << 30))};
}

// Two independent standard normal numbers (Box-Muller), within 4 units in the last place.
FF_FN void normal_pair(Word word0, Word word1, float& first, float& second) {
  const float radius = root(-2.0f * log_of((float(word0) + 0.5f) * 0x1p-32f));
  const Turn turn = turn_of(word1 >> 8);
  first = radius * turn.cosine;
  second = radius * turn.sine;
}

}  // namespace fastfed
