// Examples of made-up clients, each a function of its own number: fastfed/data/loaders/synthetic/images.py.
#pragma once

#include <cstdint>

#include "philox.h"

namespace fastfed {

// Image i is the pattern of its label, times the contrast of its owner (64: as it is), plus the owner's shade (64:
// none) and noise from -64 to 63 of the image's own stream, cut to a byte.
struct MadeImages {
  std::int64_t pixels;            // of an image
  const std::uint8_t* patterns;   // (classes, pixels)
  const std::uint8_t* contrasts;  // (owners,)
  const std::uint8_t* shades;     // (owners, pixels)
  const std::int64_t *labels, *owners, *ids;
};

// Images [0, n) into out (n, pixels).
void make_images(std::int64_t n, const MadeImages& of, const Stream& stream, std::uint8_t* out, int threads);

// out[i] is how many of the rising numbers of row rows[i] of `cumulative` (m, kinds) are at most numbers[i], the last
// left out: below `kinds`.
void choose_rows(std::int64_t n, std::int64_t kinds, const double* cumulative, const std::int64_t* rows,
                 const double* numbers, std::int64_t* out, int threads);

}  // namespace fastfed
