// Convolution of images, channels last, by products of windows with weights; which way a shape takes.
#include "engine/layers/convolution.h"

#include <algorithm>
#include <cstdlib>
#include <stdexcept>
#include <string>

#include "simd/products.h"

namespace fastfed {
namespace {

constexpr char kDirect[] = "direct", kUnrolled[] = "unrolled";

void fill_pixels(Size pixels, Size channels, const float* bias, float* to) {
  for (Size p = 0; p < pixels; ++p) std::copy(bias, bias + channels, to + p * channels);
}

// ---- directly ------------------------------------------------------------------------------------------------------

// One example at a time, straight from the image: no window is ever copied out. For wide images and kernels that fit a
// cache.
class DirectConvolution : public Convolution {
 public:
  using Convolution::Convolution;

  const char* way() const override { return kDirect; }

  static bool suits(const Spec& spec) {
    constexpr Size kWide = 8, kDeep = 2048;
    const Size depth = spec.whole("kernel_h") * spec.whole("kernel_w") * spec.input_shapes[0].channels;
    return spec.by_example && spec.output_shape.width >= kWide && depth <= kDeep;
  }

  void forward(const Frame& f, Size first, Size count) const override {
    for (Size e = first; e < first + count; ++e) {
      const float* image = padded(x(f, e), f.workspace);
      float* result = y(f, e);
      for (Size row = 0; row < out().height; ++row)
        products().outer({out().width, out().channels, run_, kernel_h_, image + row * stride_h_ * line(), step(), 1,
                          line(), param(f, 0), out().channels, run_ * out().channels,
                          result + row * out().width * out().channels, out().channels, 1.0f, param(f, 1), 0});
    }
  }

  void begin_backward(const Frame& f) const override {
    if (wants()) turn_weight(param(f, 0), kept(f));
  }

  void backward(const Frame& f, Size first, Size count) const override {
    for (Size e = first; e < first + count; ++e) {
      if (trains(0)) weight_gradient(f, e);
      bias_gradient(f, e, 1);
      if (wants()) input_gradient(f, e);
    }
  }

  Size kept_size(Size) const override { return wants() ? weight_size() : 0; }
  Size workspace_size(Size) const override { return std::max(room_size(), out().channels); }

 private:
  void weight_gradient(const Frame& f, Size e) const {
    const float* image = padded(x(f, e), f.workspace);
    const Sink weight = sink(f, 0, e);
    Outer product{run_,
                  out().channels,
                  out().width,
                  out().height,
                  image,
                  1,
                  step(),
                  stride_h_ * line(),
                  dy(f, e),
                  out().channels,
                  out().width * out().channels,
                  weight.to,
                  out().channels,
                  weight.alpha,
                  weight.beta != 0.0f ? weight.to : nullptr,
                  out().channels};
    product.groups = kernel_h_;
    product.a_group = line();
    products().outer(product);
  }

  // (kernel_h, run, out) -> (kernel_h, out, run)
  void turn_weight(const float* weight, float* turned) const {
    const Size channels = out().channels;
    for (Size ky = 0; ky < kernel_h_; ++ky)
      for (Size o = 0; o < channels; ++o)
        for (Size k = 0; k < run_; ++k) turned[(ky * channels + o) * run_ + k] = weight[(ky * run_ + k) * channels + o];
  }

  // The windows of one column of outputs, one below the other, never meet in the same row of the image: for every row
  // of the kernel they are one product.
  void input_gradient(const Frame& f, Size e) const {
    const Size channels = out().channels;
    float* target = start_gradient(f, e, f.workspace);
    for (Size col = 0; col < out().width; ++col)
      for (Size ky = 0; ky < kernel_h_; ++ky) {
        float* to = target + ky * line() + col * step();
        products().outer({out().height, run_, channels, 1, dy(f, e) + col * channels, out().width * channels, 1, 0,
                          kept(f) + ky * channels * run_, run_, 0, to, stride_h_ * line(), 1.0f, to,
                          stride_h_ * line()});
      }
    finish_gradient(f, e, f.workspace);
  }
};

// ---- unrolled ------------------------------------------------------------------------------------------------------

// All windows of all examples of the call as the rows of one matrix, for one large product: small images with many
// channels, whose weights are too large to be read once per image.
class UnrolledConvolution : public Convolution {
 public:
  using Convolution::Convolution;

  const char* way() const override { return kUnrolled; }

  void forward(const Frame& f, Size first, Size count) const override {
    const float* windows = unrolled(f, first, count);
    float* result = y(f, first);
    if (has(1)) fill_pixels(count * out().rows, out().channels, param(f, 1), result);
    product_nn(count * out().rows, out().channels, depth(), windows, param(f, 0), result, has(1));
  }

  void backward(const Frame& f, Size first, Size count) const override {
    const Size pixels = count * out().rows;
    float* windows = room(f) + room_size();
    if (wants()) {
      product_nt(pixels, depth(), out().channels, dy(f, first), param(f, 0), nullptr, windows);
      for (Size e = first; e < first + count; ++e) roll_up(f, e, windows + (e - first) * out().rows * depth());
    }
    if (trains(0)) {
      unrolled(f, first, count);
      const Sink weight = sink(f, 0, first);
      product_tn(depth(), out().channels, pixels, weight.alpha, windows, dy(f, first), weight.beta, weight.to);
    }
    bias_gradient(f, first, count);
  }

  Size workspace_size(Size batch) const override {
    const Size examples = spec().by_example ? 1 : batch;
    return std::max(room_size() + examples * out().rows * depth(), out().channels);
  }

 private:
  float* room(const Frame& f) const { return f.workspace; }

  const float* unrolled(const Frame& f, Size first, Size count) const {
    float* to = room(f) + room_size();
    for (Size e = first; e < first + count; ++e) {
      const float* image = padded(x(f, e), room(f));
      for_windows([&](Size at) {
        std::copy(image + at, image + at + run_, to);
        to += run_;
      });
    }
    return room(f) + room_size();
  }

  // The windows' gradients, added where they came from.
  void roll_up(const Frame& f, Size e, const float* windows) const {
    float* target = start_gradient(f, e, room(f));
    for_windows([&](Size at) {
      add_to(run_, windows, target + at);
      windows += run_;
    });
    finish_gradient(f, e, room(f));
  }

  // work(offset in the padded image) for every run of every window, in order.
  template <class Work> void for_windows(Work work) const {
    for (Size row = 0; row < out().height; ++row)
      for (Size col = 0; col < out().width; ++col)
        for (Size ky = 0; ky < kernel_h_; ++ky) work((row * stride_h_ + ky) * line() + col * step());
  }
};

// FASTFED_CONVOLUTION=winograd|direct|unrolled: shapes go that way if they can at all. For benchmarks and tests.
std::string asked_way() {
  const char* asked = std::getenv("FASTFED_CONVOLUTION");
  const std::string way = asked ? asked : "";
  if (way.empty() || way == kWinograd || way == kDirect || way == kUnrolled) return way;
  throw std::invalid_argument(std::string("FASTFED_CONVOLUTION: must be one of ") + kWinograd + ", " + kDirect + ", " +
                              kUnrolled + ", got '" + way + "'");
}

std::unique_ptr<Layer> make_convolution(Spec spec) {
  const std::string asked = asked_way();
  if (asked.empty() ? suits_winograd(spec) : asked == kWinograd && can_winograd(spec))
    return make_winograd_convolution(std::move(spec));
  if (asked.empty() ? DirectConvolution::suits(spec) : asked == kDirect)
    return make<DirectConvolution>(std::move(spec));
  return make<UnrolledConvolution>(std::move(spec));
}

}  // namespace

void enter_convolution_layers(LayerMakers& layers) { layers[Op::kConv2d] = make_convolution; }

}  // namespace fastfed
