// Layers of sequences: embedding and LSTM.
#include <algorithm>

#include "curves.h"
#include "engine/layers/layer.h"
#include "engine/layers/row_groups.h"
#include "engine/layers/sums.h"
#include "engine/layers/transpose.h"
#include "kernels/aligned.h"
#include "simd/clones.h"
#include "simd/loops.h"
#include "simd/products.h"

namespace fastfed {
namespace {

// ---- embedding -----------------------------------------------------------------------------------------------------

class Embedding : public Layer {
 public:
  explicit Embedding(Spec given)
      : Layer(std::move(given)), vocabulary_(spec().whole("vocabulary")), padding_(spec().whole("padding_idx")) {}

  void forward(const Frame& f, Size first, Size count) const override {
    const Size channels = out().channels;
    const std::int32_t* token = tokens(f, first);
    for (Size r = 0; r < count * out().rows; ++r)
      copy(channels, param(f, 0) + token[r] * channels, y(f, first) + r * channels);
  }

  void backward(const Frame& f, Size first, Size count) const override {
    const Size channels = out().channels;
    if (!trains(0)) return;
    const Sink weight = sink(f, 0, first);
    if (weight.beta == 0.0f) std::fill_n(weight.to, vocabulary_ * channels, 0.0f);
    const std::int32_t* token = tokens(f, first);
    RowGroups& groups = RowGroups::of_this_thread();
    groups.start(vocabulary_);
    for (Size r = 0; r < count * out().rows; ++r)
      if (token[r] != padding_) groups.add(token[r], 1.0f, dy(f, first) + r * channels);
    groups.pour_into(weight, channels, f.workspace);
  }

  Size workspace_size(Size) const override { return out().channels; }

  std::vector<Size> param_sizes() const override { return {vocabulary_ * out().channels}; }

 private:
  const std::int32_t* tokens(const Frame& f, Size example) const { return f.tokens + example * out().rows; }

  Size vocabulary_, padding_;
};

// ---- the LSTM's recurrent product ----------------------------------------------------------------------------------

// A matrix (depth, cols) cut into panels of 64 columns, each stored row after row: it is multiplied once per time step
// and is then read straight through, where the matrix itself would be read in short pieces far apart. Every row starts
// on a cache line if `memory` does, which doubles the speed of reading it.
class Panels {
 public:
  static Size size(Size depth, Size cols) { return depth * whole_lines(cols); }

  Panels(Size depth, Size cols, float* memory) : depth_(depth), cols_(cols), memory_(memory) {}

  void pack(const float* matrix) const {
    for (Size i = 0; i < count(); ++i)
      for (Size k = 0; k < depth_; ++k) copy(width(i), matrix + k * cols_ + i * kWidth, panel(i) + k * stride(i));
  }

  void pack_transposed(const float* matrix) const {
    for (Size i = 0; i < count(); ++i)
      transpose<false>(width(i), depth_, matrix + i * kWidth * depth_, panel(i), stride(i));
  }

  // c (rows, cols) = a (rows, depth) . matrix, added to c where `add`; rows of a and c lie a_row and c_row apart. Every
  // other time step goes through the panels backwards: it begins with those that are still in the cache.
  void multiply(Size step, Size rows, const float* a, Size a_row, float* c, Size c_row, bool add) const {
    for (Size n = 0; n < count(); ++n) {
      const Size i = step % 2 == 0 ? n : count() - 1 - n;
      float* to = c + i * kWidth;
      products().outer({rows, width(i), depth_, 1, a, a_row, 1, 0, panel(i), stride(i), 0, to, c_row, 1.0f,
                        add ? to : nullptr, c_row});
    }
  }

 private:
  static constexpr Size kWidth = 64;

  Size count() const { return (cols_ + kWidth - 1) / kWidth; }
  Size width(Size i) const { return std::min(kWidth, cols_ - i * kWidth); }
  Size stride(Size i) const { return whole_lines(width(i)); }
  float* panel(Size i) const { return memory_ + i * kWidth * depth_; }

  Size depth_, cols_;
  float* memory_;
};

// ---- one time step of one example ----------------------------------------------------------------------------------

// gates: what goes into the four gates (i, f, g, o), and then what comes out of them. One curve per loop: together they
// would need more registers than there are.
FF_CLONES void squash_gates(Size hidden, float* gates) {
  for (Size j = 0; j < 2 * hidden; ++j) gates[j] = sigmoid_of(gates[j]);
  for (Size j = 2 * hidden; j < 3 * hidden; ++j) gates[j] = tanh_of(gates[j]);
  for (Size j = 3 * hidden; j < 4 * hidden; ++j) gates[j] = sigmoid_of(gates[j]);
}

FF_CLONES void cell_forward(Size hidden, const float* __restrict gates, const float* __restrict before,
                            float* __restrict cell, float* __restrict squashed, float* __restrict y) {
  for (Size j = 0; j < hidden; ++j) {
    const float i = gates[j], f = gates[hidden + j], g = gates[2 * hidden + j], o = gates[3 * hidden + j];
    const float c = f * before[j] + i * g, t = tanh_of(c);
    cell[j] = c;
    squashed[j] = t;
    y[j] = o * t;
  }
}

// gates: what came out of the gates, and then the gradient of what went in. dc: the gradient of the cell's state, of
// this step and then of the one before.
FF_CLONES void cell_backward(Size hidden, float* __restrict gates, const float* __restrict before,
                             const float* __restrict squashed, const float* __restrict dy, const float* __restrict dh,
                             float* __restrict dc) {
  for (Size j = 0; j < hidden; ++j) {
    const float i = gates[j], f = gates[hidden + j], g = gates[2 * hidden + j], o = gates[3 * hidden + j];
    const float t = squashed[j], d = dy[j] + dh[j], c = dc[j] + d * o * (1.0f - t * t);
    gates[j] = c * g * (i * (1.0f - i));
    gates[hidden + j] = c * before[j] * (f * (1.0f - f));
    gates[2 * hidden + j] = c * i * (1.0f - g * g);
    gates[3 * hidden + j] = d * t * (o * (1.0f - o));
    dc[j] = c * f;
  }
}

FF_CLONES void sum_rows(Size rows, Size cols, const float* __restrict from, float* __restrict partial,
                        float* __restrict sums) {
  sum_columns_of(rows, cols, partial, sums, [=](Size r, Size c) { return from[r * cols + c]; });
}

// ---- LSTM ----------------------------------------------------------------------------------------------------------

class Lstm : public Layer {
 public:
  explicit Lstm(Spec given)
      : Layer(std::move(given)), inputs_(in().channels), hidden_(out().channels), steps_(out().rows) {}

  void forward(const Frame& f, Size first, Size count) const override {
    const Kept k = kept_of(f, first);
    product_nt(count * steps_, 4 * hidden_, inputs_, x(f, first), param(f, 0), summed_bias(f), k.gates);
    const Panels recurrent(hidden_, 4 * hidden_, f.workspace);
    recurrent.pack_transposed(param(f, 1));
    for (Size t = 0; t < steps_; ++t) {
      if (t > 0)
        recurrent.multiply(t, count, k.before + t * hidden_, steps_ * hidden_, k.gates + t * 4 * hidden_,
                           steps_ * 4 * hidden_, true);
      for (Size e = 0; e < count; ++e) step_forward(k, e, t, y(f, first));
    }
  }

  void backward(const Frame& f, Size first, Size count) const override {
    const Kept k = kept_of(f, first);
    back_through_time(f, k, first, count);
    const Size rows = count * steps_;
    if (wants()) product_nn(rows, inputs_, 4 * hidden_, k.gates, param(f, 0), dx(f, first), adds());
    // The weights have been read for the last time.
    if (trains(0)) give_to(sink(f, 0, first), inputs_, rows, k.gates, x(f, first));
    if (trains(1)) give_to(sink(f, 1, first), hidden_, rows, k.gates, k.before);
    if (!trains(2) && !trains(3)) return;
    float *partial = rest_of_workspace(f), *sums = partial + 4 * hidden_;
    sum_rows(rows, 4 * hidden_, k.gates, partial, sums);
    for (std::size_t bias : {2, 3})
      if (trains(bias)) pour(sink(f, bias, first), 4 * hidden_, sums);
  }

  Size kept_size(Size batch) const override { return batch * steps_ * 7 * hidden_; }
  Size workspace_size(Size count) const override { return panels_size() + std::max(2 * count * hidden_, 8 * hidden_); }
  std::vector<Size> param_sizes() const override {
    return {4 * hidden_ * inputs_, 4 * hidden_ * hidden_, 4 * hidden_, 4 * hidden_};
  }

 private:
  // Per example and step: what came out of the four gates, the cell's state, its tanh, and the output of the step
  // before (the gradient of the recurrent weights needs it row by row; the first one is 0).
  struct Kept {
    float *gates, *cells, *squashed, *before;
  };
  Kept kept_of(const Frame& f, Size first) const {
    const Size all = f.batch * steps_ * hidden_, skipped = first * steps_ * hidden_;
    float* cells = kept(f) + 4 * all + skipped;
    return {kept(f) + 4 * skipped, cells, cells + all, cells + 2 * all};
  }

  void give_to(const Sink& weight, Size width, Size rows, const float* gates, const float* read) const {
    product_tn(4 * hidden_, width, rows, weight.alpha, gates, read, weight.beta, weight.to);
  }

  // The workspace: first the panels of the recurrent weights, then the rest.
  Size panels_size() const { return std::max(Panels::size(hidden_, 4 * hidden_), Panels::size(4 * hidden_, hidden_)); }
  float* rest_of_workspace(const Frame& f) const { return f.workspace + panels_size(); }

  const float* summed_bias(const Frame& f) const {
    if (!has(2) || !has(3)) return has(2) ? param(f, 2) : param(f, 3);
    float* sum = rest_of_workspace(f);
    for (Size j = 0; j < 4 * hidden_; ++j) sum[j] = param(f, 2)[j] + param(f, 3)[j];
    return sum;
  }

  // The state before the first step is 0, and so is the first of the outputs before.
  const float* cell_before(const Kept& k, Size e, Size t) const {
    return t > 0 ? k.cells + (e * steps_ + t - 1) * hidden_ : k.before + e * steps_ * hidden_;
  }

  void step_forward(const Kept& k, Size e, Size t, float* y_all) const {
    const Size row = e * steps_ + t;
    float* y_row = y_all + row * hidden_;
    if (t == 0) std::fill_n(k.before + row * hidden_, hidden_, 0.0f);
    squash_gates(hidden_, k.gates + row * 4 * hidden_);
    cell_forward(hidden_, k.gates + row * 4 * hidden_, cell_before(k, e, t), k.cells + row * hidden_,
                 k.squashed + row * hidden_, y_row);
    if (t + 1 < steps_) copy(hidden_, y_row, k.before + (row + 1) * hidden_);
  }

  // Turns the kept gates into the gradients of what went into them.
  void back_through_time(const Frame& f, const Kept& k, Size first, Size count) const {
    const Panels recurrent(4 * hidden_, hidden_, f.workspace);
    recurrent.pack(param(f, 1));
    float* dh = rest_of_workspace(f);
    float* dc = dh + count * hidden_;
    std::fill_n(dh, 2 * count * hidden_, 0.0f);
    for (Size t = steps_ - 1; t >= 0; --t) {
      for (Size e = 0; e < count; ++e) {
        const Size row = e * steps_ + t;
        cell_backward(hidden_, k.gates + row * 4 * hidden_, cell_before(k, e, t), k.squashed + row * hidden_,
                      dy(f, first) + row * hidden_, dh + e * hidden_, dc + e * hidden_);
      }
      if (t > 0) recurrent.multiply(t, count, k.gates + t * 4 * hidden_, steps_ * 4 * hidden_, dh, hidden_, false);
    }
  }

  Size inputs_, hidden_, steps_;
};

}  // namespace

void enter_sequence_layers(LayerMakers& layers) {
  layers[Op::kEmbedding] = make<Embedding>;
  layers[Op::kLstm] = make<Lstm>;
}

}  // namespace fastfed
