// Exponentials and what is made of them, without branches and without library calls, so that a loop over elements
// becomes SIMD (see simd/clones.h); a library's functions would also differ from platform to platform, and from CPU to
// GPU. Every function passes NaN on and saturates where the true one does. Coefficients are minimax fits.
#pragma once

#include "philox.h"  // bits_of, float_of

namespace fastfed {

FF_FN float magnitude_of(float a) { return float_of(bits_of(a) & 0x7FFFFFFFu); }
FF_FN float with_sign_of(float magnitude, float sign) {
  return float_of(bits_of(magnitude) | (bits_of(sign) & 0x80000000u));
}

// e^a within 1 unit in the last place. What would be less than the smallest normal number is 0: numbers below it take
// the processor a hundred times as long.
FF_FN float exp_of(float a) {
  constexpr float kLowest = -87.3365447f, kHighest = 88.8f;
  constexpr float kShift = 0x1.8p23f;  // adding it leaves the nearest whole number in the low bits
  float b = a < kLowest ? kLowest : a;
  b = b > kHighest ? kHighest : b;
  const float shifted = b * 1.44269504f + kShift, n = shifted - kShift;
  // log(2) in two pieces, the first of nine bits: its product with n is exact.
  const float r = (b - n * 0.693359375f) - n * -2.12194440055e-4f;
  float p = 0.00138144755195f;
  p = p * r + 0.00836875088853f;
  p = p * r + 0.04166839212f;
  p = p * r + 0.166665203368f;
  p = p * r + 0.499999934256f;
  p = 1.0f + (r + (r * r) * p);
  // 2^n in two factors: n = 128 is the exponent of no float.
  const int whole = int(bits_of(shifted) - bits_of(kShift)), half = whole >> 1;
  const float power0 = float_of(Word(half + 127) << 23), power1 = float_of(Word(whole - half + 127) << 23);
  return a < kLowest ? 0.0f : (p * power0) * power1;
}

// 1 / (1 + e^-a) within 3 units.
FF_FN float sigmoid_of(float a) { return 1.0f / (1.0f + exp_of(-a)); }

struct Logistic {
  float value, rest;  // they add up to 1
};

// The sigmoid and what it lacks to 1, both within 3 units, where 1 - sigmoid would cancel.
FF_FN Logistic logistic_of(float a) {
  const float e = exp_of(-magnitude_of(a)), larger_share = 1.0f / (1.0f + e), smaller_share = e * larger_share;
  return a < 0.0f ? Logistic{smaller_share, larger_share} : Logistic{larger_share, smaller_share};
}

// Within 2 units, near 0 too, where 1 - 2 / (e^2a + 1) would cancel.
FF_FN float tanh_of(float a) {
  const float size = magnitude_of(a), s = a * a;
  const float far = 1.0f - 2.0f / (exp_of(2.0f * size) + 1.0f);
  float p = -0.0056973346874f;
  p = p * s + 0.020632497587f;
  p = p * s - 0.053737781219f;
  p = p * s + 0.133314201479f;
  p = p * s - 0.333332811745f;
  const float near = a + a * (s * p);
  return size < 0.625f ? near : with_sign_of(far, a);
}

// log(1 + e) for e in [0, 1], within 2 units also of a tiny e: 2 atanh(e / (2 + e)).
FF_FN float log1p_of(float e) {
  const float s = e / (2.0f + e), z = s * s;
  float p = 0.121541734815f;
  p = p * z + 0.107129218813f;
  p = p * z + 0.143085180675f;
  p = p * z + 0.199994364178f;
  p = p * z + 0.333333378353f;
  return 2.0f * (s + s * (z * p));
}

// The standard normal distribution's mass below a, (1 + erf(a / sqrt(2))) / 2, within 2^-24, and in the lower
// tail within 0.2 % of itself, where the difference of 1 and erf would leave nothing.
FF_FN float normal_mass_of(float a) {
  const float size = magnitude_of(a), b = size > 13.1f ? 13.1f : size, s = a * a;
  float q = 3.55254318206e-8f;  // the tail's logarithm
  q = q * b - 2.00377170986e-6f;
  q = q * b + 4.84042022229e-5f;
  q = q * b - 0.000666517517281f;
  q = q * b + 0.00593839767862f;
  q = q * b - 0.0374258049265f;
  q = q * b - 0.317847542921f;
  q = q * b - 0.79785708872f;
  q = q * b - 0.693209591359f;
  const float tail = exp_of(q), far = a > 0.0f ? 1.0f - tail : tail;
  float p = -7.45931923771e-6f;
  p = p * s + 0.000112942780813f;
  p = p * s - 0.00118577599303f;
  p = p * s + 0.00997307459093f;
  p = p * s - 0.0664903137013f;
  p = p * s + 0.398942277644f;
  return size < 1.0f ? 0.5f + a * p : far;
}

}  // namespace fastfed
