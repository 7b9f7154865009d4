// All in double: the two cosines are often nearly the same, and so are the vectors that their gradients are made of.
#include "engine/layers/contrast.h"

#include <cmath>

#include "simd/clones.h"

namespace fastfed {
namespace {

enum Product { kLocalLocal, kStartStart, kPreviousPrevious, kLocalStart, kLocalPrevious, kProducts };

// The inner products of an example's features, summed in fixed lanes.
FF_CLONES void inner_products(Size n, const float* __restrict local, const float* __restrict start,
                              const float* __restrict previous, double* __restrict sums) {
  constexpr int kLanes = 8;
  double lanes[kProducts][kLanes] = {};
  const auto add = [&](Size i, int l) {
    const double z = double(local[i]), s = double(start[i]), p = double(previous[i]);
    lanes[kLocalLocal][l] += z * z;
    lanes[kStartStart][l] += s * s;
    lanes[kPreviousPrevious][l] += p * p;
    lanes[kLocalStart][l] += z * s;
    lanes[kLocalPrevious][l] += z * p;
  };
  Size i = 0;
  for (; i + kLanes <= n; i += kLanes)
    for (int l = 0; l < kLanes; ++l) add(i + l, l);
  for (int l = 0; i + l < n; ++l) add(i + l, l);
  for (int product = 0; product < kProducts; ++product) {
    sums[product] = 0;
    for (double lane : lanes[product]) sums[product] += lane;
  }
}

FF_CLONES void add_combined(Size n, double a, const float* __restrict local, double b, const float* __restrict start,
                            double c, const float* __restrict previous, float* __restrict to) {
  for (Size i = 0; i < n; ++i) to[i] += float(a * double(local[i]) + (b * double(start[i]) + c * double(previous[i])));
}

// The cosine of two vectors by their inner product and the product of their squares, and 1 over that of their norms;
// with a zero vector both are 0, and so is the gradient.
struct Cosine {
  Cosine(double product, double squares)
      : per_norms(squares == 0 ? 0.0 : 1 / std::sqrt(squares)), value(product * per_norms) {}
  double per_norms, value;
};

}  // namespace

double contrast(const Features& features, double mu, double temperature, float* dlocal) {
  double total = 0;
  for (Size e = 0; e < features.n; ++e) {
    const Size at = e * features.width;
    const float *local = features.local + at, *start = features.start + at, *previous = features.previous + at;
    double product[kProducts];
    inner_products(features.width, local, start, previous, product);
    const double squares = product[kLocalLocal];
    const Cosine near(product[kLocalStart], squares * product[kStartStart]);
    const Cosine far(product[kLocalPrevious], squares * product[kPreviousPrevious]);
    const double apart = (far.value - near.value) / temperature, small = std::exp(-std::fabs(apart));
    total += (apart > 0 ? apart : 0.0) + std::log1p(small);
    const double slope = (apart > 0 ? 1.0 : small) / (1.0 + small);  // of the term by `apart`
    const double scale = mu * slope / (temperature * double(features.n));
    const double of_local = squares == 0 ? 0.0 : -scale * (far.value - near.value) / squares;
    add_combined(features.width, of_local, local, -scale * near.per_norms, start, scale * far.per_norms, previous,
                 dlocal + at);
  }
  return mu * total / double(features.n);
}

}  // namespace fastfed
