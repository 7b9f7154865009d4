// Convolution and pooling of one image at a time, channels last.
#include <algorithm>

#include "cpu/clones.h"
#include "cpu/layers/layer.h"
#include "cpu/products.h"

namespace fastfed {
namespace {

// ---- convolution ---------------------------------------------------------------------------------------------------

// The window of an output pixel is `kernel_h` runs of memory, kernel_w * channels long: no window is ever copied out.
// The weight lies as (kernel_h, kernel_w, channels in, channels out).
class Conv2d : public Layer {
 public:
  explicit Conv2d(Spec given)
      : Layer(std::move(given)),
        kernel_h_(spec().whole("kernel_h")),
        kernel_w_(spec().whole("kernel_w")),
        stride_h_(spec().whole("stride_h")),
        stride_w_(spec().whole("stride_w")),
        pad_h_(spec().whole("pad_h")),
        pad_w_(spec().whole("pad_w")),
        padded_h_(in().height + 2 * pad_h_),
        padded_w_(in().across + 2 * pad_w_),
        run_(kernel_w_ * in().width) {}

  void forward(const Frame& f, Size first, Size count) const override {
    for (Size e = first; e < first + count; ++e) {
      const float* image = padded(x(f, e), f.workspace);
      float* result = y(f, e);
      if (has(1)) fill_pixels(out().rows, out().width, param(f, 1), result);
      for (Size row = 0; row < out().height; ++row)
        products().outer({out().across, out().width, run_, kernel_h_, image + row * stride_h_ * line(), step(), 1,
                          line(), param(f, 0), out().width, run_ * out().width,
                          result + row * out().across * out().width, out().width, 1.0f, has(1)});
    }
  }

  void backward(const Frame& f, Size first, Size count) const override {
    if (wants() && first == 0) turn_weight(param(f, 0), kept(f));
    for (Size e = first; e < first + count; ++e) {
      weight_gradient(f, e);
      if (has(1)) {
        sum_pixels(out().rows, out().width, dy(f, e), f.workspace);
        pour(sink(f, 1, e), out().width, f.workspace);
      }
      if (wants()) input_gradient(f, e);
    }
  }

  Size kept_size(Size) const override { return wants() ? weight_size() : 0; }
  Size workspace_size(Size) const override { return std::max(padded_h_ * line(), out().width); }
  std::vector<Size> param_sizes() const override { return {weight_size(), out().width}; }

 private:
  Size line() const { return padded_w_ * in().width; }
  Size step() const { return stride_w_ * in().width; }
  Size weight_size() const { return kernel_h_ * run_ * out().width; }
  bool pads() const { return pad_h_ > 0 || pad_w_ > 0; }

  // The image with a border of zeros, in `room`; the image itself where there is no border.
  const float* padded(const float* image, float* room) const {
    if (!pads()) return image;
    std::fill(room, room + padded_h_ * line(), 0.0f);
    const Size length = in().across * in().width;
    for (Size row = 0; row < in().height; ++row)
      std::copy(image + row * length, image + (row + 1) * length, inside(room, row));
    return room;
  }
  float* inside(float* room, Size row) const { return room + (row + pad_h_) * line() + pad_w_ * in().width; }

  static void fill_pixels(Size pixels, Size width, const float* bias, float* to) {
    for (Size p = 0; p < pixels; ++p) std::copy(bias, bias + width, to + p * width);
  }

  FF_CLONES static void sum_pixels(Size pixels, Size width, const float* dy, float* sums) {
    for (Size c = 0; c < width; ++c) sums[c] = 0.0f;
    for (Size p = 0; p < pixels; ++p)
      for (Size c = 0; c < width; ++c) sums[c] += dy[p * width + c];
  }

  void weight_gradient(const Frame& f, Size e) const {
    const float* image = padded(x(f, e), f.workspace);
    const Sink weight = sink(f, 0, e);
    for (Size ky = 0; ky < kernel_h_; ++ky)
      products().outer({run_, out().width, out().across, out().height, image + ky * line(), 1, step(),
                        stride_h_ * line(), dy(f, e), out().width, out().across * out().width,
                        weight.to + ky * run_ * out().width, out().width, weight.alpha, weight.beta != 0.0f});
  }

  // (kernel_h, run, out) -> (kernel_h, out, run)
  void turn_weight(const float* weight, float* turned) const {
    const Size width = out().width;
    for (Size ky = 0; ky < kernel_h_; ++ky)
      for (Size o = 0; o < width; ++o)
        for (Size k = 0; k < run_; ++k) turned[(ky * width + o) * run_ + k] = weight[(ky * run_ + k) * width + o];
  }

  void input_gradient(const Frame& f, Size e) const {
    float* target = pads() ? f.workspace : dx(f, e);
    if (pads() || !adds()) std::fill(target, target + padded_h_ * line(), 0.0f);
    for (Size row = 0; row < out().height; ++row)
      for (Size ky = 0; ky < kernel_h_; ++ky) add_windows(f, e, row, ky, target);
    if (pads()) crop(target, dx(f, e));
  }

  // Adds the share of one row of outputs to one row of the image. Neighbouring windows overlap, so they are taken in
  // turns: those that do not overlap are one product.
  void add_windows(const Frame& f, Size e, Size row, Size ky, float* target) const {
    const Size width = out().width, turns = std::min((kernel_w_ + stride_w_ - 1) / stride_w_, out().across);
    const float* from = dy(f, e) + row * out().across * width;
    float* to = target + (row * stride_h_ + ky) * line();
    for (Size t = 0; t < turns; ++t)
      products().outer({(out().across - t + turns - 1) / turns, run_, width, 1, from + t * width, turns * width, 1, 0,
                        kept(f) + ky * width * run_, run_, 0, to + t * step(), turns * step(), 1.0f, true});
  }

  void crop(float* room, float* to) const {
    const Size length = in().across * in().width;
    for (Size row = 0; row < in().height; ++row) {
      const float* from = inside(room, row);
      for (Size i = 0; i < length; ++i) to[row * length + i] = from[i] + (adds() ? to[row * length + i] : 0.0f);
    }
  }

  Size kernel_h_, kernel_w_, stride_h_, stride_w_, pad_h_, pad_w_, padded_h_, padded_w_, run_;
};

// ---- pooling -------------------------------------------------------------------------------------------------------

// The pixels [begin, end) of one axis under a window; `full` counts those of the border too.
struct Window {
  Size begin, end, full;
};

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
          sliding(in().across, out().across, spec().whole("kernel_w"), spec().whole("stride_w"), spec().whole("pad_w"));
    } else {
      down_ = adaptive(in().height, out().height);
      across_ = adaptive(in().across, out().across);
    }
  }

 protected:
  // work(output pixel, window down, window across)
  template <class Work> void for_windows(Work work) const {
    for (Size row = 0; row < out().height; ++row)
      for (Size col = 0; col < out().across; ++col)
        work(row * out().across + col, down_[std::size_t(row)], across_[std::size_t(col)]);
  }
  // work(input pixel, number in the window)
  template <class Work> void for_pixels(const Window& down, const Window& across, Work work) const {
    int number = 0;
    for (Size row = down.begin; row < down.end; ++row)
      for (Size col = across.begin; col < across.end; ++col) work(row * in().across + col, number++);
  }
  void start_gradient(const Frame& f, Size e) const {
    if (!adds()) std::fill(dx(f, e), dx(f, e) + in().size(), 0.0f);
  }

 private:
  std::vector<Window> down_, across_;
};

FF_CLONES void take_larger(Size n, const float* __restrict value, int number, float* __restrict best,
                           float* __restrict which) {
  for (Size c = 0; c < n; ++c) {
    const bool larger = value[c] > best[c] || value[c] != value[c];  // NaN wins, as in torch
    best[c] = larger ? value[c] : best[c];
    which[c] = larger ? float(number) : which[c];
  }
}

FF_CLONES void give_to_largest(Size n, const float* __restrict dy, const float* __restrict which, int number,
                               float* __restrict dx) {
  for (Size c = 0; c < n; ++c) dx[c] += which[c] == float(number) ? dy[c] : 0.0f;
}

class MaxPool : public Pool {
 public:
  using Pool::Pool;

  void forward(const Frame& f, Size first, Size count) const override {
    const Size width = in().width;
    for (Size e = first; e < first + count; ++e) {
      const float* image = x(f, e);
      float *best = y(f, e), *which = winners(f, e);
      for_windows([&](Size pixel, const Window& down, const Window& across) {
        const Size begin = (down.begin * in().across + across.begin) * width;
        std::copy(image + begin, image + begin + width, best + pixel * width);
        std::fill(which + pixel * width, which + (pixel + 1) * width, 0.0f);
        for_pixels(down, across, [&](Size from, int number) {
          if (number > 0) take_larger(width, image + from * width, number, best + pixel * width, which + pixel * width);
        });
      });
    }
  }

  void backward(const Frame& f, Size first, Size count) const override {
    if (!wants()) return;
    const Size width = in().width;
    for (Size e = first; e < first + count; ++e) {
      start_gradient(f, e);
      float* to = dx(f, e);
      const float *from = dy(f, e), *which = winners(f, e);
      for_windows([&](Size pixel, const Window& down, const Window& across) {
        for_pixels(down, across, [&](Size at, int number) {
          give_to_largest(width, from + pixel * width, which + pixel * width, number, to + at * width);
        });
      });
    }
  }

  Size kept_size(Size batch) const override { return batch * out().size(); }

 private:
  float* winners(const Frame& f, Size e) const { return kept(f) + e * out().size(); }  // numbers in their windows
};

FF_CLONES void add_scaled(Size n, const float* __restrict from, float scale, float* __restrict to) {
  for (Size c = 0; c < n; ++c) to[c] += scale * from[c];
}

class AveragePool : public Pool {
 public:
  explicit AveragePool(Spec given)
      : Pool(std::move(given)),
        border_counts_(spec().settings.count("count_include_pad") && spec().setting("count_include_pad") != 0) {}

  void forward(const Frame& f, Size first, Size count) const override {
    const Size width = in().width;
    for (Size e = first; e < first + count; ++e) {
      const float* image = x(f, e);
      float* result = y(f, e);
      std::fill(result, result + out().size(), 0.0f);
      for_windows([&](Size pixel, const Window& down, const Window& across) {
        const float share = share_of(down, across);
        for_pixels(down, across,
                   [&](Size from, int) { add_scaled(width, image + from * width, share, result + pixel * width); });
      });
    }
  }

  void backward(const Frame& f, Size first, Size count) const override {
    if (!wants()) return;
    const Size width = in().width;
    for (Size e = first; e < first + count; ++e) {
      start_gradient(f, e);
      float* to = dx(f, e);
      const float* from = dy(f, e);
      for_windows([&](Size pixel, const Window& down, const Window& across) {
        const float share = share_of(down, across);
        for_pixels(down, across,
                   [&](Size at, int) { add_scaled(width, from + pixel * width, share, to + at * width); });
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

void enter_image_layers(LayerTable& table) {
  table["conv2d"] = make<Conv2d>;
  table["max_pool"] = table["adaptive_max_pool"] = make<MaxPool>;
  table["avg_pool"] = table["adaptive_avg_pool"] = make<AveragePool>;
}

}  // namespace fastfed
