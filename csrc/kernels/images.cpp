#include "kernels/images.h"

#include <vector>

#include "kernels/parallel.h"
#include "simd/clones.h"
#include "simd/simd.h"

namespace fastfed {
namespace {

constexpr int kFullContrast = 6;  // bits
constexpr int kShadeDepth = 64, kNoiseDepth = 64;

// The noise of a whole image, 0 to 127: a number of 24 bits serves a pixel of each third, by seven of its bits.
// `words` holds the numbers of kClientLanes images, in their upper 24 bits; noise has room for three thirds.
void draw_noise(std::int64_t third, const Word* words, std::uint8_t* noise) {
  for (std::int64_t i = 0; i < third; ++i) {
    const Word number = words[i * kClientLanes] >> 8;
    noise[i] = std::uint8_t(number & 127);
    noise[third + i] = std::uint8_t((number >> 8) & 127);
    noise[2 * third + i] = std::uint8_t((number >> 16) & 127);
  }
}

// Sixteen bits are enough: 255 times the largest contrast of 128 would be, and then some.
FF_CLONES void paint(std::int64_t n, const std::uint8_t* pattern, std::int16_t contrast, const std::uint8_t* shade,
                     const std::uint8_t* noise, std::uint8_t* out) {
  for (std::int64_t i = 0; i < n; ++i) {
    const std::int16_t lit = std::int16_t(std::int16_t(pattern[i] * contrast) >> kFullContrast);
    const std::int16_t value = std::int16_t(lit + (shade[i] - kShadeDepth) + (noise[i] - kNoiseDepth));
    out[i] = std::uint8_t(std::min<std::int16_t>(255, std::max<std::int16_t>(0, value)));
  }
}

class Painter {
 public:
  Painter(const MadeImages& of, const Stream& stream)
      : of_(of),
        stream_(stream),
        third_((of.pixels + 2) / 3),
        blocks_((third_ + 3) / 4),
        words_(std::size_t(4 * blocks_ * kClientLanes)),
        noise_(std::size_t(3 * third_)) {}

  // Up to kClientLanes images from `first` on.
  void paint_some(std::int64_t first, std::int64_t count, std::uint8_t* out) {
    std::int64_t ids[kClientLanes] = {};
    std::copy(of_.ids + first, of_.ids + first + count, ids);
    vector_loops<float>().words_of_clients(stream_, ids, blocks_, words_.data());
    for (std::int64_t lane = 0; lane < count; ++lane) paint_one(first + lane, lane, out + (first + lane) * of_.pixels);
  }

 private:
  void paint_one(std::int64_t image, std::int64_t lane, std::uint8_t* out) {
    draw_noise(third_, words_.data() + lane, noise_.data());
    const std::int64_t owner = of_.owners[image];
    paint(of_.pixels, of_.patterns + of_.labels[image] * of_.pixels, of_.contrasts[owner],
          of_.shades + owner * of_.pixels, noise_.data(), out);
  }

  const MadeImages& of_;
  const Stream& stream_;
  std::int64_t third_, blocks_;
  std::vector<Word> words_;
  std::vector<std::uint8_t> noise_;
};

}  // namespace

void make_images(std::int64_t n, const MadeImages& of, const Stream& stream, std::uint8_t* out, int threads) {
  constexpr std::int64_t kTogether = 64 * kClientLanes;  // images of a task
  for_tasks((n + kTogether - 1) / kTogether, threads, [&](std::int64_t task, int) {
    Painter painter(of, stream);
    for (std::int64_t i = task * kTogether; i < std::min(n, (task + 1) * kTogether); i += kClientLanes)
      painter.paint_some(i, std::min<std::int64_t>(kClientLanes, n - i), out);
  });
}

void choose_rows(std::int64_t n, std::int64_t kinds, const double* cumulative, const std::int64_t* rows,
                 const double* numbers, std::int64_t* out, int threads) {
  for_chunks(n, threads, [&](std::int64_t begin, std::int64_t count) {
    for (std::int64_t i = begin; i < begin + count; ++i) {
      const double* row = cumulative + rows[i] * kinds;
      out[i] = std::upper_bound(row, row + kinds - 1, numbers[i]) - row;
    }
  });
}

}  // namespace fastfed
