#include "kernels/images.h"

#include <vector>

#include "kernels/parallel.h"
#include "simd/clones.h"
#include "simd/simd.h"

namespace fastfed {
namespace {

constexpr std::int64_t kTogether = 64;  // images of a task
constexpr int kFullContrast = 6;        // bits
constexpr int kShadeDepth = 64, kNoiseDepth = 64;

// Pixels that share a place in the stream's numbers, of 24 bits each: `bit` says which seven are theirs.
FF_CLONES void paint(std::int64_t n, const float* drawn, int bit, const std::uint8_t* pattern, int contrast,
                     const std::uint8_t* shade, std::uint8_t* out) {
  for (std::int64_t i = 0; i < n; ++i) {
    const int noise = ((int(drawn[i] * 0x1p24f) >> bit) & 127) - kNoiseDepth;
    const int value = ((pattern[i] * contrast) >> kFullContrast) + (shade[i] - kShadeDepth) + noise;
    out[i] = std::uint8_t(std::min(255, std::max(0, value)));
  }
}

}  // namespace

void make_images(std::int64_t n, const MadeImages& of, const Stream& stream, std::uint8_t* out, int threads) {
  const auto uniform = vector_loops<float>().uniform;
  const std::int64_t third = (of.pixels + 2) / 3;
  for_tasks((n + kTogether - 1) / kTogether, threads, [&](std::int64_t task, int) {
    std::vector<float> drawn(static_cast<std::size_t>(third));
    for (std::int64_t i = task * kTogether; i < std::min(n, (task + 1) * kTogether); ++i) {
      uniform(stream, Word(of.ids[i]), 0, third, drawn.data());
      const std::uint8_t *pattern = of.patterns + of.labels[i] * of.pixels,
                         *shade = of.shades + of.owners[i] * of.pixels;
      for (std::int64_t begin = 0, bit = 0; begin < of.pixels; begin += third, bit += 8)
        paint(std::min(third, of.pixels - begin), drawn.data(), int(bit), pattern + begin, of.contrasts[of.owners[i]],
              shade + begin, out + i * of.pixels + begin);
    }
  });
}

}  // namespace fastfed
