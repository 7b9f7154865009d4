// What all ways of a convolution share: sizes, borders and the bias. The weight lies as (kernel_h, kernel_w, channels
// in, channels out). The window of an output pixel is `kernel_h` runs of memory, kernel_w * channels long.
#pragma once

#include <algorithm>

#include "engine/layers/layer.h"
#include "simd/loops.h"

namespace fastfed {

class Convolution : public Layer {
 public:
  explicit Convolution(Spec given)
      : Layer(std::move(given)),
        kernel_h_(spec().whole("kernel_h")),
        kernel_w_(spec().whole("kernel_w")),
        stride_h_(spec().whole("stride_h")),
        stride_w_(spec().whole("stride_w")),
        pad_h_(spec().whole("pad_h")),
        pad_w_(spec().whole("pad_w")),
        padded_h_(in().height + 2 * pad_h_),
        padded_w_(in().width + 2 * pad_w_),
        run_(kernel_w_ * in().channels) {}

  std::vector<Size> param_sizes() const override { return {weight_size(), out().channels}; }
  double multiplications() const override { return double(out().rows) * double(weight_size()); }

 protected:
  Size line() const { return padded_w_ * in().channels; }  // from row to row of the padded image
  Size step() const { return stride_w_ * in().channels; }  // from window to window
  Size room_size() const { return padded_h_ * line(); }    // of a padded image
  Size depth() const { return kernel_h_ * run_; }          // numbers in a window
  Size weight_size() const { return depth() * out().channels; }
  bool pads() const { return pad_h_ > 0 || pad_w_ > 0; }

  // The image with a border of zeros, in `room`; the image itself where there is no border.
  const float* padded(const float* image, float* room) const {
    if (!pads()) return image;
    std::fill(room, room + room_size(), 0.0f);
    const Size length = in().width * in().channels;
    for (Size row = 0; row < in().height; ++row)
      std::copy(image + row * length, image + (row + 1) * length, inside(room, row));
    return room;
  }

  // Where the gradient of example e is gathered, border included; cleared unless it adds to what is there.
  float* start_gradient(const Frame& f, Size e, float* room) const {
    float* target = pads() ? room : dx(f, e);
    if (pads() || !adds()) std::fill(target, target + room_size(), 0.0f);
    return target;
  }
  // Cuts the border off again.
  void finish_gradient(const Frame& f, Size e, float* room) const {
    if (!pads()) return;
    const Size length = in().width * in().channels;
    float* to = dx(f, e);
    for (Size row = 0; row < in().height; ++row) {
      const float* from = inside(room, row);
      if (adds())
        add_to(length, from, to + row * length);
      else
        std::copy(from, from + length, to + row * length);
    }
  }

  void bias_gradient(const Frame& f, Size first, Size count) const {
    if (!trains(1)) return;
    sum_rows(count * out().rows, out().channels, dy(f, first), f.workspace);
    pour(sink(f, 1, first), out().channels, f.workspace);
  }

  Size kernel_h_, kernel_w_, stride_h_, stride_w_, pad_h_, pad_w_, padded_h_, padded_w_, run_;

 private:
  float* inside(float* room, Size row) const { return room + (row + pad_h_) * line() + pad_w_ * in().channels; }
};

// By Winograd's transforms (winograd.cpp): shapes that can go this way, and those for which it is the best.
constexpr char kWinograd[] = "winograd";
bool can_winograd(const Spec& spec);
bool suits_winograd(const Spec& spec);
std::unique_ptr<Layer> make_winograd_convolution(Spec spec);

}  // namespace fastfed
