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

struct Words {
  Word w[4];
};

#if defined(__CUDACC__) || defined(__CUDACC_RTC__)
FF_FN float log_of(float a) { return logf(a); }
FF_FN float cos_of(float a) { return cosf(a); }
FF_FN float sin_of(float a) { return sinf(a); }
#else
FF_FN float log_of(float a) { return __builtin_logf(a); }
FF_FN float cos_of(float a) { return __builtin_cosf(a); }
FF_FN float sin_of(float a) { return __builtin_sinf(a); }
#endif

FF_FN Words philox_round(Words c, Word k0, Word k1) {
  const Wide product0 = Wide(c.w[0]) * 0xD2511F53u, product1 = Wide(c.w[2]) * 0xCD9E8D57u;
  return {{Word(product1 >> 32) ^ c.w[1] ^ k0, Word(product1), Word(product0 >> 32) ^ c.w[3] ^ k1, Word(product0)}};
}

FF_FN Words philox(Words c, Word k0, Word k1) {
  for (int i = 0; i < 9; ++i) {
    c = philox_round(c, k0, k1);
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return philox_round(c, k0, k1);
}

FF_FN float uniform_of(Word word) { return float(word >> 8) * 0x1p-24f; }

FF_FN void normal_pair(Word word0, Word word1, float& first, float& second) {
  const float radius = root(-2.0f * log_of((float(word0) + 0.5f) * 0x1p-32f));
  const float angle = 6.283185307179586f * uniform_of(word1);
  first = radius * cos_of(angle);
  second = radius * sin_of(angle);
}

FF_FN long long sort_key(Word high, Word low) { return (long long)((Wide(high) << 31) | (low >> 1)); }

}  // namespace fastfed
