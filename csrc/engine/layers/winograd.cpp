// Convolution with 3x3 windows at stride 1 by Winograd's transforms: fewer multiplications than there are numbers in
// the windows. Images are cut into tiles, tiles become parts, and every part is a product of its own.
#include <memory>
#include <vector>

#include "engine/layers/convolution.h"
#include "engine/layers/transpose.h"
#include "kernels/aligned.h"
#include "kernels/parallel.h"
#include "simd/products.h"
#include "simd/winograd.h"

namespace fastfed {
namespace {

constexpr Size kWindow = 3, kTaps = kWindow * kWindow;
constexpr Size kLane = 16;     // channels come in whole vectors of every SIMD level
constexpr Size kPortion = 64;  // channels of a portion of weights: a part of one stays in the first cache

Size ceiling(Size a, Size b) { return (a + b - 1) / b; }

// The products that an image takes with tiles of so many outputs, for every pair of channels.
Size products_of(const Shape& image, Size outputs) {
  const Size side = outputs + kWindow - 1;
  return ceiling(image.height, outputs) * ceiling(image.width, outputs) * side * side;
}

// The tiles of the images themselves. Those of 3x3 outputs would take fewer products yet, but their error against
// float64 is 2.5 to 4 times that of a plain sum.
const Winograd& exact_tile() { return winograd_tiles().two; }

// The tiles of the weight's gradient, a sum over many of them, in which those of 3x3 err no more than a plain sum.
const Winograd& quick_tile(const Shape& image) {
  const WinogradTiles& tiles = winograd_tiles();
  return products_of(image, tiles.three.outputs) < products_of(image, tiles.two.outputs) ? tiles.three : tiles.two;
}

// From images of one shape to those of another, whose tiles are counted here.
struct Way {
  Way(Shape source, Shape target, Size pad_down, Size pad_across, const Winograd& cut)
      : from(source),
        to(target),
        pad_h(pad_down),
        pad_w(pad_across),
        tile(cut),
        down(ceiling(target.height, tile.outputs)),
        across(ceiling(target.width, tile.outputs)) {}

  Size tiles() const { return down * across; }

  Shape from, to;
  Size pad_h, pad_w;
  const Winograd& tile;
  Size down, across;
};

// Transformed tiles: a matrix (tiles, channels) for every part. They lie a line more than their size apart: at a power
// of two from each other, the parts of a tile would push each other out of the cache.
struct Parts {
  float* data;
  Size tiles, channels;
  Size apart() const { return tiles * channels + kLineElements; }
  static Size size(const Winograd& tile, Size tiles, Size channels) {
    return tile.parts * (tiles * channels + kLineElements);
  }
};

// The pixels of a square, row by row; `outside` stands for those that the image has not.
template <class Number>
void find_square(const Shape& image, Number* data, Size top, Size left, Size side, Number* outside, Number** found) {
  for (Size row = top; row < top + side; ++row)
    for (Size col = left; col < left + side; ++col) {
      const bool inside = row >= 0 && row < image.height && col >= 0 && col < image.width;
      *found++ = inside ? data + (row * image.width + col) * image.channels : outside;
    }
}

// work(image, number among the call's tiles, row of its first output, column of it), images shared among threads
template <class Work> void for_tiles(const Frame& f, const Way& way, Size count, Work work) {
  for_tasks(count, f.threads, [&](Size image, int) {
    Size number = image * way.tiles();
    for (Size row = 0; row < way.down; ++row)
      for (Size col = 0; col < way.across; ++col) work(image, number++, row * way.tile.outputs, col * way.tile.outputs);
  });
}

// What a thread works in: the parts of a portion of weights, and the weights of one turned.
struct Hands {
  alignas(64) float portion[kMostParts * kPortion * kPortion], turned[kTaps * kPortion * kPortion];
};

Hands& hands() {
  static thread_local const std::unique_ptr<Hands> held = std::make_unique<Hands>();
  return *held;
}

// Where outputs beyond the border are written, which nobody reads.
float* beyond(Size channels) {
  static thread_local std::vector<float> room;
  if (Size(room.size()) < channels) room.resize(std::size_t(channels));
  return room.data();
}

class WinogradConvolution : public Convolution {
 public:
  explicit WinogradConvolution(Spec given)
      : Convolution(std::move(given)),
        ahead_(in(), out(), pad_h_, pad_w_, exact_tile()),
        back_(out(), in(), kWindow - 1 - pad_h_, kWindow - 1 - pad_w_, exact_tile()),
        learning_(in(), out(), pad_h_, pad_w_, quick_tile(out())) {}

  const char* way() const override { return kWinograd; }

  void begin_forward(const Frame& f) const override { keep_weight(f, ahead_); }
  void begin_backward(const Frame& f) const override {
    if (wants()) keep_weight(f, back_);
  }

  void forward(const Frame& f, Size first, Size count) const override {
    convolve(f, ahead_, count, x(f, first), y(f, first), {1.0f, false, param(f, 1)});
  }

  void backward(const Frame& f, Size first, Size count) const override {
    if (wants()) convolve(f, back_, count, dy(f, first), dx(f, first), {1.0f, adds(), nullptr});
    if (trains(0)) weight_gradient(f, first, count);
    bias_gradient(f, first, count);
  }

  Size kept_size(Size) const override {
    return spec().by_example ? ahead_.tile.parts * in().channels * out().channels : 0;
  }

  Size workspace_size(Size batch) const override {
    const Size examples = spec().by_example ? 1 : batch;
    const auto size = [&](const Way& way, Size channels) {
      return Parts::size(way.tile, examples * way.tiles(), channels);
    };
    Size most = 0;
    for (const Way* way : {&ahead_, &back_, &learning_})
      most = std::max(most, size(*way, in().channels) + size(*way, out().channels));
    return border() + most;
  }

 private:
  // ---- room: zeros to be read beyond the border, then parts
  Size border() const { return std::max(in().channels, out().channels); }
  float* nothing(const Frame& f) const { return f.workspace; }
  float* parts(const Frame& f) const { return f.workspace + border(); }

  // ---- weights

  // Where the parts of a portion begin, all portions one after the other.
  static Size portion_at(const Way& way, Size s, Size t, Size many_t) {
    return way.tile.parts * (t * way.from.channels + s * many_t);
  }

  // The parts of a portion of weights, (parts, channels from, channels to).
  void transform_portion(const Frame& f, const Way& way, Size s, Size many_s, Size t, Size many_t, float* to) const {
    const float* taps[kTaps];
    const bool is_back = &way == &back_;
    float* turned = hands().turned;
    if (is_back) turn_portion(f, t, many_t, s, many_s, turned);
    for (Size r = 0; r < many_s; ++r) {
      for (Size tap = 0; tap < kTaps; ++tap)
        taps[tap] = is_back ? turned + ((kTaps - 1 - tap) * many_s + r) * many_t : weight_at(f, tap, s + r, t);
      way.tile.weight(many_t, taps, to + r * many_t, many_s * many_t);
    }
  }

  const float* weight_at(const Frame& f, Size tap, Size c, Size o) const {
    return param(f, 0) + (tap * in().channels + c) * out().channels + o;
  }

  // (taps, channels out, channels in) of the weight, of these channels.
  void turn_portion(const Frame& f, Size c, Size many_c, Size o, Size many_o, float* to) const {
    for (Size tap = 0; tap < kTaps; ++tap)
      transpose_tile<false>(many_c, many_o, weight_at(f, tap, c, o), out().channels, to + tap * many_o * many_c,
                            many_c);
  }

  // Where images come one by one, their weights are transformed before the first.
  void keep_weight(const Frame& f, const Way& way) const {
    if (!spec().by_example) return;
    for_portions(f, way, [&](Size s, Size many_s, Size t, Size many_t) {
      transform_portion(f, way, s, many_s, t, many_t, kept(f) + portion_at(way, s, t, many_t));
    });
  }

  // work(first channel from, their number, first channel to, their number) for every portion, in any order.
  template <class Work> static void for_portions(const Frame& f, const Way& way, Work work) {
    const Size from = way.from.channels, to = way.to.channels, row = ceiling(from, kPortion);
    for_tasks(row * ceiling(to, kPortion), f.threads, [&](Size portion, int) {
      const Size s = portion % row * kPortion, t = portion / row * kPortion;
      work(s, std::min(kPortion, from - s), t, std::min(kPortion, to - t));
    });
  }

  // ---- images

  void convolve(const Frame& f, const Way& way, Size count, const float* images, float* results,
                const Finish& finish) const {
    const Parts from{parts(f), count * way.tiles(), way.from.channels};
    const Parts to{from.data + way.tile.parts * from.apart(), from.tiles, way.to.channels};
    take_images(f, way, count, images, from);
    for_tasks(ceiling(to.channels, kPortion), f.threads, [&](Size portion, int) {
      const Size t = portion * kPortion, many_t = std::min(kPortion, to.channels - t);
      for (Size s = 0; s < from.channels; s += kPortion) {
        const Size many_s = std::min(kPortion, from.channels - s);
        float* weights = spec().by_example ? kept(f) + portion_at(way, s, t, many_t) : hands().portion;
        if (!spec().by_example) transform_portion(f, way, s, many_s, t, many_t, weights);
        multiply_parts(way, from, s, many_s, to, t, many_t, weights);
      }
    });
    leave_images(f, way, count, to, results, finish);
  }

  // Part by part, to = from . weights of these channels, or that added to the products of those before.
  static void multiply_parts(const Way& way, const Parts& from, Size s, Size many_s, const Parts& to, Size t,
                             Size many_t, const float* weights) {
    for (Size part = 0; part < way.tile.parts; ++part) {
      float* c = to.data + part * to.apart() + t;
      products().outer({from.tiles, many_t, many_s, 1, from.data + part * from.apart() + s, from.channels, 1, 0,
                        weights + part * many_s * many_t, many_t, 0, c, to.channels, 1.0f, s > 0 ? c : nullptr,
                        to.channels});
    }
  }

  void take_images(const Frame& f, const Way& way, Size count, const float* images, const Parts& to) const {
    std::fill_n(nothing(f), border(), 0.0f);
    for_tiles(f, way, count, [&](Size e, Size number, Size row, Size col) {
      const float* pixels[kMostParts];
      find_square(way.from, images + e * way.from.size(), row - way.pad_h, col - way.pad_w, way.tile.side,
                  static_cast<const float*>(nothing(f)), pixels);
      way.tile.input(to.channels, pixels, to.data + number * to.channels, to.apart());
    });
  }

  void leave_images(const Frame& f, const Way& way, Size count, const Parts& from, float* images,
                    const Finish& finish) const {
    for_tiles(f, way, count, [&](Size e, Size number, Size row, Size col) {
      float* pixels[kMostParts];
      find_square(way.to, images + e * way.to.size(), row, col, way.tile.outputs, beyond(from.channels), pixels);
      way.tile.output(from.channels, from.data + number * from.channels, from.apart(), pixels, finish);
    });
  }

  // ---- the weight's gradient

  void weight_gradient(const Frame& f, Size first, Size count) const {
    const Way& way = learning_;
    const Parts from{parts(f), count * way.tiles(), way.from.channels};
    const Parts to{from.data + way.tile.parts * from.apart(), from.tiles, way.to.channels};
    take_images(f, way, count, x(f, first), from);
    take_slopes(f, way, count, dy(f, first), to);
    const Sink weight = sink(f, 0, first);
    for_portions(f, way, [&](Size s, Size many_s, Size t, Size many_t) {
      float* portion = hands().portion;
      for (Size part = 0; part < way.tile.parts; ++part)
        products().outer({many_s, many_t, from.tiles, 1, from.data + part * from.apart() + s, 1, from.channels, 0,
                          to.data + part * to.apart() + t, to.channels, 0, portion + part * many_s * many_t, many_t,
                          1.0f, nullptr, 0});
      for (Size r = 0; r < many_s; ++r) {
        float* taps[kTaps];
        for (Size tap = 0; tap < kTaps; ++tap)
          taps[tap] = weight.to + (tap * in().channels + s + r) * out().channels + t;
        way.tile.weight_slope(many_t, portion + r * many_t, many_s * many_t, taps,
                              {weight.alpha, weight.beta != 0.0f, nullptr});
      }
    });
  }

  void take_slopes(const Frame& f, const Way& way, Size count, const float* images, const Parts& to) const {
    for_tiles(f, way, count, [&](Size e, Size number, Size row, Size col) {
      const float* pixels[kMostParts];
      find_square(way.to, images + e * way.to.size(), row, col, way.tile.outputs, static_cast<const float*>(nothing(f)),
                  pixels);
      way.tile.slope(to.channels, pixels, to.data + number * to.channels, to.apart());
    });
  }

  Way ahead_, back_, learning_;
};

}  // namespace

bool can_winograd(const Spec& spec) {
  const auto is = [&](const char* name, Size value) { return spec.whole(name) == value; };
  return is("kernel_h", kWindow) && is("kernel_w", kWindow) && is("stride_h", 1) && is("stride_w", 1) &&
         spec.whole("pad_h") < kWindow && spec.whole("pad_w") < kWindow && spec.input_shapes[0].channels % kLane == 0 &&
         spec.output_shape.channels % kLane == 0;
}

bool suits_winograd(const Spec& spec) {
  const Shape& image = spec.output_shape;
  return can_winograd(spec) && products_of(image, exact_tile().outputs) < kTaps * image.rows;
}

std::unique_ptr<Layer> make_winograd_convolution(Spec spec) { return make<WinogradConvolution>(std::move(spec)); }

}  // namespace fastfed
