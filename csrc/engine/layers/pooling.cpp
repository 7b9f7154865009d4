// Pooling of images, channels last.
#include <algorithm>

#include "engine/layers/layer.h"
#include "simd/loops.h"
#include "simd/pools.h"

namespace fastfed {
namespace {

// ---- pooling -------------------------------------------------------------------------------------------------------

std::vector<Window> sliding(Size size, Size outputs, Size kernel, Size stride, Size pad) {
  std::vector<Window> windows;
  for (Size o = 0; o < outputs; ++o) {
    const Size begin = o * stride - pad, end = std::min(begin + kernel, size + pad);
    windows.push_back({std::max<Size>(begin, 0), std::min(end, size), end - begin});
  }
  return windows;
}

std::vector<Window> adaptive(Size size, Size outputs) {
  std::vector<Window> windows;
  for (Size o = 0; o < outputs; ++o) {
    const Size begin = o * size / outputs, end = ((o + 1) * size + outputs - 1) / outputs;
    windows.push_back({begin, end, end - begin});
  }
  return windows;
}

class Pool : public Layer {
 public:
  explicit Pool(Spec given) : Layer(std::move(given)) {
    if (spec().settings.count("kernel_h")) {
      down_ =
          sliding(in().height, out().height, spec().whole("kernel_h"), spec().whole("stride_h"), spec().whole("pad_h"));
      across_ =
          sliding(in().width, out().width, spec().whole("kernel_w"), spec().whole("stride_w"), spec().whole("pad_w"));
    } else {
      down_ = adaptive(in().height, out().height);
      across_ = adaptive(in().width, out().width);
    }
  }

 protected:
  // work(output pixel, window down, window across)
  template <class Work> void for_windows(Work work) const {
    for (Size row = 0; row < out().height; ++row)
      for (Size col = 0; col < out().width; ++col)
        work(row * out().width + col, down_[std::size_t(row)], across_[std::size_t(col)]);
  }
  // work(input pixel, number in the window)
  template <class Work> void for_pixels(const Window& down, const Window& across, Work work) const {
    int number = 0;
    for (Size row = down.begin; row < down.end; ++row)
      for (Size col = across.begin; col < across.end; ++col) work(row * in().width + col, number++);
  }
  Grid grid() const { return {down_.data(), across_.data(), out().height, out().width, in().width, in().channels}; }
  void start_gradient(const Frame& f, Size e) const {
    if (!adds()) std::fill(dx(f, e), dx(f, e) + in().size(), 0.0f);
  }

 private:
  std::vector<Window> down_, across_;
};

class MaxPool : public Pool {
 public:
  using Pool::Pool;

  void forward(const Frame& f, Size first, Size count) const override {
    for (Size e = first; e < first + count; ++e) pools().largest(grid(), x(f, e), y(f, e), winners(f, e));
  }

  void backward(const Frame& f, Size first, Size count) const override {
    if (!wants()) return;
    for (Size e = first; e < first + count; ++e) {
      start_gradient(f, e);
      pools().give_to_largest(grid(), dy(f, e), winners(f, e), dx(f, e));
    }
  }

  Size kept_size(Size batch) const override { return batch * out().size(); }

 private:
  float* winners(const Frame& f, Size e) const { return kept(f) + e * out().size(); }  // numbers in their windows
};

class AveragePool : public Pool {
 public:
  explicit AveragePool(Spec given)
      : Pool(std::move(given)),
        border_counts_(spec().settings.count("count_include_pad") && spec().setting("count_include_pad") != 0) {}

  void forward(const Frame& f, Size first, Size count) const override {
    const Size channels = in().channels;
    for (Size e = first; e < first + count; ++e) {
      const float* image = x(f, e);
      float* result = y(f, e);
      std::fill(result, result + out().size(), 0.0f);
      for_windows([&](Size pixel, const Window& down, const Window& across) {
        const float share = share_of(down, across);
        for_pixels(down, across, [&](Size from, int) {
          add_scaled(channels, share, image + from * channels, result + pixel * channels);
        });
      });
    }
  }

  void backward(const Frame& f, Size first, Size count) const override {
    if (!wants()) return;
    const Size channels = in().channels;
    for (Size e = first; e < first + count; ++e) {
      start_gradient(f, e);
      float* to = dx(f, e);
      const float* from = dy(f, e);
      for_windows([&](Size pixel, const Window& down, const Window& across) {
        const float share = share_of(down, across);
        for_pixels(down, across,
                   [&](Size at, int) { add_scaled(channels, share, from + pixel * channels, to + at * channels); });
      });
    }
  }

 private:
  float share_of(const Window& down, const Window& across) const {
    const Size pixels =
        border_counts_ ? down.full * across.full : (down.end - down.begin) * (across.end - across.begin);
    return 1.0f / float(pixels);
  }
  bool border_counts_;
};

}  // namespace

void enter_pooling_layers(LayerMakers& layers) {
  layers[Op::kMaxPool] = layers[Op::kAdaptiveMaxPool] = make<MaxPool>;
  layers[Op::kAvgPool] = layers[Op::kAdaptiveAvgPool] = make<AveragePool>;
}

}  // namespace fastfed
