// What sequences of tokens need besides attention: parts of them, parameters before and on top of them, their mean.
#include <algorithm>

#include "engine/layers/layer.h"
#include "simd/clones.h"
#include "simd/loops.h"

namespace fastfed {
namespace {

void pass_on(Size n, const float* from, float* to, bool add) { add ? add_to(n, from, to) : copy(n, from, to); }

// ---- a part of a value, or all of it in another order --------------------------------------------------------------

// y[r, c] = x[at + r * row_step + c * step]
class Pick : public Layer {
 public:
  explicit Pick(Spec given)
      : Layer(std::move(given)),
        at_(spec().whole("at")),
        row_step_(spec().whole("row_step")),
        step_(spec().whole("step")) {
    const Size last = at_ + (out().rows - 1) * row_step_ + (out().channels - 1) * step_;
    if (at_ < 0 || row_step_ < 0 || step_ < 0 || last >= in().size())
      throw std::invalid_argument("pick: looks beyond its input");
  }

  void forward(const Frame& f, Size first, Size count) const override {
    for (Size e = first; e < first + count; ++e) {
      const float* from = x(f, e) + at_;
      float* to = y(f, e);
      if (is_one_run()) {
        copy(out().size(), from, to);
        continue;
      }
      for (Size r = 0; r < out().rows; ++r, from += row_step_, to += out().channels)
        for (Size c = 0; c < out().channels; ++c) to[c] = from[c * step_];
    }
  }

  void backward(const Frame& f, Size first, Size count) const override {
    if (!wants()) return;
    for (Size e = first; e < first + count; ++e) {
      const bool whole = is_one_run() && out().size() == in().size();
      if (whole) {
        pass_on(in().size(), dy(f, e), dx(f, e), adds());
        continue;
      }
      if (!adds()) std::fill_n(dx(f, e), in().size(), 0.0f);
      const float* from = dy(f, e);
      float* to = dx(f, e) + at_;
      for (Size r = 0; r < out().rows; ++r, from += out().channels, to += row_step_)
        for (Size c = 0; c < out().channels; ++c) to[c * step_] += from[c];
    }
  }

 private:
  bool is_one_run() const { return step_ == 1 && (out().rows == 1 || row_step_ == out().channels); }

  Size at_, row_step_, step_;
};

// ---- sequences and parameters one after the other ------------------------------------------------------------------

// Part i is input `part_i`, or, if that is negative, parameter -1 - part_i; it has `rows_i` rows.
class Concatenate : public Layer {
 public:
  explicit Concatenate(Spec given) : Layer(std::move(given)), sizes_(spec().params.size()) {
    Size rows = 0;
    for (Size i = 0; i < spec().whole("parts"); ++i) {
      const Part part{int(spec().whole("part_" + std::to_string(i))), spec().whole("rows_" + std::to_string(i)), rows};
      const bool known = part.source >= 0 ? part.source < int(spec().inputs.size()) : param_of(part) < sizes_.size();
      if (!known || (part.source >= 0 && in(part.source).size() != part.rows * out().channels))
        throw std::invalid_argument("concatenate: names a part that is not there, or does not fit");
      if (part.source < 0) sizes_[param_of(part)] = part.rows * out().channels;
      parts_.push_back(part);
      rows += part.rows;
    }
    if (rows != out().rows) throw std::invalid_argument("concatenate: its parts do not add up to the output");
  }

  void forward(const Frame& f, Size first, Size count) const override {
    for (Size e = first; e < first + count; ++e)
      for (const Part& part : parts_)
        copy(size(part), part.source < 0 ? param(f, param_of(part)) : x(f, e, part.source), y(f, e) + at(part));
  }

  void backward(const Frame& f, Size first, Size count) const override {
    for (const Part& part : parts_) {
      if (part.source >= 0 && wants(part.source))
        for (Size e = first; e < first + count; ++e)
          pass_on(size(part), dy(f, e) + at(part), dx(f, e, part.source), adds(part.source));
      if (part.source < 0 && trains(param_of(part))) give_to_parameter(f, first, count, part);
    }
  }

  Size workspace_size(Size) const override { return out().size(); }
  std::vector<Size> param_sizes() const override { return sizes_; }

 private:
  struct Part {
    int source;
    Size rows, before;  // rows that lie before it
  };
  static std::size_t param_of(const Part& part) { return std::size_t(-1 - part.source); }
  Size size(const Part& part) const { return part.rows * out().channels; }
  Size at(const Part& part) const { return part.before * out().channels; }

  void give_to_parameter(const Frame& f, Size first, Size count, const Part& part) const {
    std::fill_n(f.workspace, size(part), 0.0f);
    for (Size e = first; e < first + count; ++e) add_to(size(part), dy(f, e) + at(part), f.workspace);
    pour(sink(f, param_of(part), first), size(part), f.workspace);
  }

  std::vector<Part> parts_;
  std::vector<Size> sizes_;
};

// ---- a parameter added to every row, or to every example -----------------------------------------------------------

FF_CLONES void add_same(Size rows, Size width, const float* __restrict x, const float* __restrict same,
                        float* __restrict y) {
  for (Size r = 0; r < rows; ++r)
    for (Size i = 0; i < width; ++i) y[r * width + i] = x[r * width + i] + same[i];
}

class AddParameter : public Layer {
 public:
  explicit AddParameter(Spec given) : Layer(std::move(given)), width_(spec().whole("width")) {
    if (width_ < 1 || out().size() % width_ != 0) throw std::invalid_argument("add_parameter: does not fit its input");
  }

  void forward(const Frame& f, Size first, Size count) const override {
    add_same(count * out().size() / width_, width_, x(f, first), param(f, 0), y(f, first));
  }

  void backward(const Frame& f, Size first, Size count) const override {
    const Size size = count * out().size();
    if (wants()) pass_on(size, dy(f, first), dx(f, first), adds());
    if (!trains(0)) return;
    sum_rows(size / width_, width_, dy(f, first), f.workspace);
    pour(sink(f, 0, first), width_, f.workspace);
  }

  Size workspace_size(Size) const override { return width_; }
  std::vector<Size> param_sizes() const override { return {width_}; }

 private:
  Size width_;
};

// ---- times a number ------------------------------------------------------------------------------------------------

template <bool Add> FF_CLONES void scale(Size n, float factor, const float* __restrict x, float* __restrict y) {
  for (Size i = 0; i < n; ++i) y[i] = Add ? y[i] + factor * x[i] : factor * x[i];
}

class Scale : public Layer {
 public:
  explicit Scale(Spec given) : Layer(std::move(given)), factor_(float(spec().setting("factor"))) {}

  void forward(const Frame& f, Size first, Size count) const override {
    scale<false>(count * out().size(), factor_, x(f, first), y(f, first));
  }

  void backward(const Frame& f, Size first, Size count) const override {
    if (!wants()) return;
    const auto back = adds() ? scale<true> : scale<false>;
    back(count * out().size(), factor_, dy(f, first), dx(f, first));
  }

 private:
  float factor_;
};

// ---- the mean of a sequence's rows ---------------------------------------------------------------------------------

// Of those whose token is not `padding`; of all where that is -1, or where all are padding.
class MeanRows : public Layer {
 public:
  explicit MeanRows(Spec given) : Layer(std::move(given)), padding_(spec().whole("padding")) {}

  void forward(const Frame& f, Size first, Size count) const override {
    for (Size e = first; e < first + count; ++e) {
      std::fill_n(f.workspace, in().channels, 0.0f);
      const float share =
          for_rows(f, e, [&](Size r) { add_to(in().channels, x(f, e) + r * in().channels, f.workspace); });
      scale<false>(in().channels, share, f.workspace, y(f, e));
    }
  }

  void backward(const Frame& f, Size first, Size count) const override {
    if (!wants()) return;
    for (Size e = first; e < first + count; ++e) {
      if (!adds()) std::fill_n(dx(f, e), in().size(), 0.0f);
      const float share = for_rows(f, e, [](Size) {});
      for_rows(f, e, [&](Size r) { add_scaled(in().channels, share, dy(f, e), dx(f, e) + r * in().channels); });
    }
  }

  Size workspace_size(Size) const override { return in().channels; }

 private:
  // work(row) for every row that counts; the share of each.
  template <class Work> float for_rows(const Frame& f, Size e, Work work) const {
    const std::int32_t* token = padding_ < 0 ? nullptr : f.tokens + e * in().rows;
    if (token && std::count(token, token + in().rows, std::int32_t(padding_)) == in().rows) token = nullptr;
    Size rows = 0;
    for (Size r = 0; r < in().rows; ++r)
      if (!token || token[r] != padding_) {
        work(r);
        ++rows;
      }
    return float(1.0 / double(rows));
  }

  Size padding_;
};

}  // namespace

void enter_token_layers(LayerMakers& layers) {
  layers[Op::kPick] = make<Pick>;
  layers[Op::kConcatenate] = make<Concatenate>;
  layers[Op::kAddParameter] = make<AddParameter>;
  layers[Op::kScale] = make<Scale>;
  layers[Op::kMeanRows] = make<MeanRows>;
}

}  // namespace fastfed
