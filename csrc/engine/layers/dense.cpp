// Linear layers, on vectors and on every step of sequences.
#include "engine/layers/layer.h"
#include "simd/loops.h"
#include "simd/products.h"

namespace fastfed {
namespace {

class Linear : public Layer {
 public:
  using Layer::Layer;

  void forward(const Frame& f, Size first, Size count) const override {
    product_nt(count * in().rows, out().channels, in().channels, x(f, first), param(f, 0), param(f, 1), y(f, first),
               f.ahead);
  }

  void backward(const Frame& f, Size first, Size count) const override {
    const Size rows = count * in().rows, from = in().channels, to = out().channels;
    if (wants()) product_nn(rows, from, to, dy(f, first), param(f, 0), dx(f, first), adds());
    if (trains(0)) {
      const Sink weight = sink(f, 0, first);
      product_tn(to, from, rows, weight.alpha, dy(f, first), x(f, first), weight.beta, weight.to, f.ahead);
    }
    if (trains(1)) {
      sum_rows(rows, to, dy(f, first), f.workspace);
      pour(sink(f, 1, first), to, f.workspace);
    }
  }

  Size workspace_size(Size) const override { return out().channels; }
  std::vector<Size> param_sizes() const override { return {in().channels * out().channels, out().channels}; }
};

}  // namespace

void enter_dense_layers(LayerMakers& layers) { layers[Op::kLinear] = make<Linear>; }

}  // namespace fastfed
