// A linear layer on sparse rows: forward and the weight gradient cost what the non-zeros cost. The weight lies
// transposed, (in, out), so that a column of the input is one run of memory.
#include <algorithm>

#include "engine/layers/layer.h"
#include "engine/layers/row_groups.h"
#include "simd/loops.h"

namespace fastfed {
namespace {

class SparseLinear : public Layer {
 public:
  using Layer::Layer;

  void forward(const Frame& f, Size first, Size count) const override {
    const Size channels = out().channels;
    std::vector<const float*>& rows = rows_of_this_thread();
    for (Size e = first; e < first + count; ++e) {
      float* result = y(f, e);
      if (has(1))
        std::copy(param(f, 1), param(f, 1) + channels, result);
      else
        std::fill(result, result + channels, 0.0f);
      rows.clear();
      for_entries(f, e, [&](Size column, float) { rows.push_back(row_of(f, column)); });
      add_rows(channels, Size(rows.size()), rows.data(), f.sparse.values + f.sparse.starts[f.rows[e]], result);
    }
  }

  void backward(const Frame& f, Size first, Size count) const override {
    if (trains(0)) give_to_weight(f, first, count);
    if (!trains(1)) return;
    sum_rows(count, out().channels, dy(f, first), f.workspace);
    pour(sink(f, 1, first), out().channels, f.workspace);
  }

  Size workspace_size(Size) const override { return out().channels; }
  std::vector<Size> param_sizes() const override { return {in().channels * out().channels, out().channels}; }

 private:
  void give_to_weight(const Frame& f, Size first, Size count) const {
    const Size channels = out().channels;
    RowGroups& groups = is_tracked(f) ? *f.groups : RowGroups::of_this_thread();
    groups.start(in().channels);
    for (Size e = first; e < first + count; ++e)
      for_entries(f, e, [&](Size column, float value) { groups.add(column, value, dy(f, e)); });
    if (is_tracked(f)) return;
    const Sink weight = sink(f, 0, first);
    if (weight.beta == 0.0f) std::fill(weight.to, weight.to + in().channels * channels, 0.0f);
    groups.pour_into(weight, channels, f.workspace);
  }

  static std::vector<const float*>& rows_of_this_thread() {
    thread_local std::vector<const float*> rows;
    return rows;
  }

  bool is_tracked(const Frame& f) const { return f.moved && spec().tracked; }

  const float* row_of(const Frame& f, Size column) const {
    const float* table = is_tracked(f) && !f.moved[column] ? f.start + spec().params[0] : param(f, 0);
    return table + column * out().channels;
  }

  template <class Work> static void for_entries(const Frame& f, Size e, Work work) {
    const Size row = f.rows[e];
    for (Size i = f.sparse.starts[row]; i < f.sparse.starts[row + 1]; ++i)
      work(Size(f.sparse.columns[i]), f.sparse.values[i]);
  }
};

}  // namespace

void enter_sparse_layers(LayerMakers& layers) { layers[Op::kSparseLinear] = make<SparseLinear>; }

}  // namespace fastfed
