// A linear layer on sparse rows: forward and the weight gradient cost what the non-zeros cost. The weight lies
// transposed, (in, out), so that a column of the input is one run of memory.
#include <algorithm>

#include "cpu/layers/layer.h"
#include "cpu/layers/row_groups.h"
#include "cpu/loops.h"

namespace fastfed {
namespace {

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
    RowGroups& groups = RowGroups::of_this_thread();
    groups.start(in().width);
    for (Size e = first; e < first + count; ++e)
      for_entries(f, e, [&](Size column, float value) { groups.add(column, value, dy(f, e)); });
    groups.pour_into(weight, width, f.workspace);
    if (has(1)) {
      sum_rows(count, width, dy(f, first), f.workspace);
      pour(sink(f, 1, first), width, f.workspace);
    }
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
