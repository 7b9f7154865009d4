// A linear layer on sparse rows: forward and the weight gradient cost what the non-zeros cost. The weight lies
// transposed, (in, out), so that a column of the input is one run of memory.
#include <algorithm>

#include "cpu/clones.h"
#include "cpu/layers/layer.h"

namespace fastfed {
namespace {

FF_CLONES void add_scaled(Size n, float scale, const float* __restrict from, float* __restrict to) {
  for (Size j = 0; j < n; ++j) to[j] += scale * from[j];
}

class SparseLinear : public Layer {
 public:
  using Layer::Layer;

  void forward(const Frame& f, Size first, Size count) const override {
    const Size width = out().width;
    for (Size e = first; e < first + count; ++e) {
      float* result = y(f, e);
      if (has(1))
        std::copy(param(f, 1), param(f, 1) + width, result);
      else
        std::fill(result, result + width, 0.0f);
      for_entries(f, e,
                  [&](Size column, float value) { add_scaled(width, value, param(f, 0) + column * width, result); });
    }
  }

  void backward(const Frame& f, Size first, Size count) const override {
    const Size width = out().width;
    const Sink weight = sink(f, 0, first);
    if (weight.beta == 0.0f) std::fill(weight.to, weight.to + in().width * width, 0.0f);
    if (has(1)) std::fill(f.workspace, f.workspace + width, 0.0f);
    for (Size e = first; e < first + count; ++e) {
      const float* from = dy(f, e);
      for_entries(f, e, [&](Size column, float value) {
        add_scaled(width, weight.alpha * value, from, weight.to + column * width);
      });
      if (has(1)) add_scaled(width, 1.0f, from, f.workspace);
    }
    if (has(1)) pour(sink(f, 1, first), width, f.workspace);
  }

  Size workspace_size(Size) const override { return out().width; }
  std::vector<Size> param_sizes() const override { return {in().width * out().width, out().width}; }

 private:
  template <class Work> static void for_entries(const Frame& f, Size e, Work work) {
    const Size row = f.rows[e];
    for (Size i = f.sparse.starts[row]; i < f.sparse.starts[row + 1]; ++i)
      work(Size(f.sparse.columns[i]), f.sparse.values[i]);
  }
};

}  // namespace

void enter_sparse_layers(LayerTable& table) { table["sparse_linear"] = make<SparseLinear>; }

}  // namespace fastfed
