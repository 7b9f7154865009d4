// Normalisation over groups of an image's channels, over the examples of a batch, and over the last axis. Means and
// variances take two passes: the difference of mean square and squared mean would cancel where the mean is large.
#include <algorithm>
#include <cmath>

#include "engine/layers/layer.h"
#include "engine/layers/sums.h"
#include "simd/clones.h"

namespace fastfed {
namespace {

float inverse_root(double variance, double eps) { return float(1.0 / std::sqrt(variance + eps)); }

// ---- by group ------------------------------------------------------------------------------------------------------

// One image: `pixels` rows of `channels` numbers.
struct Pixels {
  Size pixels, channels;
  Size size() const { return pixels * channels; }
};

FF_CLONES void sum_channels(const Pixels& n, const float* __restrict x, float* __restrict partial,
                            float* __restrict sums) {
  sum_columns_of(n.pixels, n.channels, partial, sums, [=](Size r, Size c) { return x[r * n.channels + c]; });
}

FF_CLONES void sum_squares(const Pixels& n, const float* __restrict x, const float* __restrict mean,
                           float* __restrict partial, float* __restrict sums) {
  sum_columns_of(n.pixels, n.channels, partial, sums, [=](Size r, Size c) {
    const float a = x[r * n.channels + c] - mean[c];
    return a * a;
  });
}

FF_CLONES void sum_products(const Pixels& n, const float* __restrict x, const float* __restrict mean,
                            const float* __restrict dy, float* __restrict partial, float* __restrict sums) {
  sum_columns_of(n.pixels, n.channels, partial, sums,
                 [=](Size r, Size c) { return dy[r * n.channels + c] * (x[r * n.channels + c] - mean[c]); });
}

FF_CLONES void scale_channels(const Pixels& n, const float* __restrict x, const float* __restrict mean,
                              const float* __restrict scale, const float* __restrict shift, float* __restrict y) {
  for (Size r = 0; r < n.pixels; ++r)
    for (Size c = 0; c < n.channels; ++c)
      y[r * n.channels + c] = (x[r * n.channels + c] - mean[c]) * scale[c] + shift[c];
}

// dx = dy * by_dy + (x - mean) * by_x + shift
template <bool Add>
FF_CLONES void combine_channels(const Pixels& n, const float* __restrict dy, const float* __restrict x,
                                const float* __restrict mean, const float* __restrict by_dy,
                                const float* __restrict by_x, const float* __restrict shift, float* __restrict dx) {
  for (Size r = 0; r < n.pixels; ++r)
    for (Size c = 0; c < n.channels; ++c) {
      const Size i = r * n.channels + c;
      const float d = dy[i] * by_dy[c] + (x[i] - mean[c]) * by_x[c] + shift[c];
      dx[i] = Add ? dx[i] + d : d;
    }
}

class GroupNorm : public Layer {
 public:
  explicit GroupNorm(Spec given)
      : Layer(std::move(given)),
        n_{in().rows, in().channels},
        groups_(spec().whole("groups")),
        eps_(spec().setting("eps")) {
    if (groups_ < 1 || n_.channels % groups_ != 0)
      throw std::invalid_argument("group_norm: groups must divide the channels");
  }

  void forward(const Frame& f, Size first, Size count) const override {
    const Scratch s = scratch(f);
    for (Size e = first; e < first + count; ++e) {
      measure(f, e, s);
      recall(f, e, s);
      for (Size c = 0; c < n_.channels; ++c) {
        s.by_x[c] = s.inverse[c] * weight(f, c);
        s.shift[c] = has(1) ? param(f, 1)[c] : 0.0f;
      }
      scale_channels(n_, x(f, e), s.mean, s.by_x, s.shift, y(f, e));
    }
  }

  void backward(const Frame& f, Size first, Size count) const override {
    const Scratch s = scratch(f);
    std::fill(s.weight_grad, s.weight_grad + n_.channels, 0.0f);
    std::fill(s.bias_grad, s.bias_grad + n_.channels, 0.0f);
    for (Size e = first; e < first + count; ++e) {
      recall(f, e, s);
      add_parameter_gradients(f, e, s);
      if (wants()) give_back(f, e, s);
    }
    if (trains(0)) pour(sink(f, 0, first), n_.channels, s.weight_grad);
    if (trains(1)) pour(sink(f, 1, first), n_.channels, s.bias_grad);
  }

  Size kept_size(Size batch) const override { return batch * 2 * groups_; }
  Size workspace_size(Size) const override { return kScratchArrays * n_.channels; }
  std::vector<Size> param_sizes() const override { return {n_.channels, n_.channels}; }

 private:
  // One number per channel each.
  static constexpr Size kScratchArrays = 10;
  struct Scratch {
    float *partial, *mean, *inverse, *by_dy, *by_x, *shift;
    float *products, *sums;  // of one example, over its pixels
    float *weight_grad, *bias_grad;
  };
  Scratch scratch(const Frame& f) const {
    const auto at = [&](Size i) { return f.workspace + i * n_.channels; };
    return {at(0), at(1), at(2), at(3), at(4), at(5), at(6), at(7), at(8), at(9)};
  }

  Size group_channels() const { return n_.channels / groups_; }
  double group_size() const { return double(group_channels() * n_.pixels); }
  float* group_means(const Frame& f, Size example) const { return kept(f) + example * 2 * groups_; }
  float* group_inverses(const Frame& f, Size example) const { return group_means(f, example) + groups_; }
  float weight(const Frame& f, Size channel) const { return has(0) ? param(f, 0)[channel] : 1.0f; }

  double group_sum(const float* channels, Size group) const {
    double sum = 0.0;
    for (Size c = 0; c < group_channels(); ++c) sum += double(channels[group * group_channels() + c]);
    return sum;
  }

  // Mean and 1 / deviation of every group of an example, to be kept.
  void measure(const Frame& f, Size example, const Scratch& s) const {
    sum_channels(n_, x(f, example), s.partial, s.sums);
    for (Size g = 0; g < groups_; ++g) group_means(f, example)[g] = float(group_sum(s.sums, g) / group_size());
    spread(group_means(f, example), s.mean);
    sum_squares(n_, x(f, example), s.mean, s.partial, s.sums);
    for (Size g = 0; g < groups_; ++g)
      group_inverses(f, example)[g] = inverse_root(group_sum(s.sums, g) / group_size(), eps_);
  }

  void spread(const float* groups, float* channels) const {
    for (Size c = 0; c < n_.channels; ++c) channels[c] = groups[c / group_channels()];
  }

  void recall(const Frame& f, Size example, const Scratch& s) const {
    spread(group_means(f, example), s.mean);
    spread(group_inverses(f, example), s.inverse);
  }

  void add_parameter_gradients(const Frame& f, Size example, const Scratch& s) const {
    sum_channels(n_, dy(f, example), s.partial, s.sums);
    sum_products(n_, x(f, example), s.mean, dy(f, example), s.partial, s.products);
    for (Size c = 0; c < n_.channels; ++c) {
      s.products[c] *= s.inverse[c];
      s.weight_grad[c] += s.products[c];
      s.bias_grad[c] += s.sums[c];
    }
  }

  // dx = (dy * weight - mean(dy * weight) - xhat * mean(dy * weight * xhat)) / deviation, means over the group
  void give_back(const Frame& f, Size example, const Scratch& s) const {
    for (Size c = 0; c < n_.channels; ++c) {
      s.by_dy[c] = s.inverse[c] * weight(f, c);
      s.sums[c] *= weight(f, c);
      s.products[c] *= weight(f, c);
    }
    for (Size g = 0; g < groups_; ++g) {
      const double inverse = double(group_inverses(f, example)[g]);
      const float shift = float(-inverse * group_sum(s.sums, g) / group_size());
      const float by_x = float(-inverse * inverse * group_sum(s.products, g) / group_size());
      std::fill_n(s.shift + g * group_channels(), group_channels(), shift);
      std::fill_n(s.by_x + g * group_channels(), group_channels(), by_x);
    }
    const auto combine = adds() ? combine_channels<true> : combine_channels<false>;
    combine(n_, dy(f, example), x(f, example), s.mean, s.by_dy, s.by_x, s.shift, dx(f, example));
  }

  Pixels n_;
  Size groups_;
  double eps_;
};

// ---- by batch ------------------------------------------------------------------------------------------------------

// Of every channel, over all rows of all examples of a batch: by the batch's own mean and variance while it is learnt,
// by running ones in evaluation and where it is frozen.
class BatchNorm : public Layer {
 public:
  explicit BatchNorm(Spec given)
      : Layer(std::move(given)),
        channels_(in().channels),
        mean_at_(spec().whole("mean")),
        variance_at_(spec().whole("variance")),
        eps_(spec().setting("eps")),
        momentum_(spec().setting("momentum")),
        frozen_(spec().whole("frozen") != 0) {}

  void forward(const Frame& f, Size first, Size count) const override {
    const Scratch s = scratch(f);
    const Pixels n = pixels(count);
    by_batch(f) ? measure(f, n, x(f, first), s) : recall(f);
    for (Size c = 0; c < channels_; ++c) {
      s.by_x[c] = inverse(f)[c] * weight(f, c);
      s.shift[c] = has(1) ? param(f, 1)[c] : 0.0f;
    }
    scale_channels(n, x(f, first), mean(f), s.by_x, s.shift, y(f, first));
  }

  void backward(const Frame& f, Size first, Size count) const override {
    const Scratch s = scratch(f);
    const Pixels n = pixels(count);
    const float *given = x(f, first), *slope = dy(f, first);
    total(n, s, s.sums, [&](const Pixels& some, Size at) { sum_channels(some, slope + at, s.partial, s.part); });
    total(n, s, s.products,
          [&](const Pixels& some, Size at) { sum_products(some, given + at, mean(f), slope + at, s.partial, s.part); });
    for (Size c = 0; c < channels_; ++c) s.products[c] *= inverse(f)[c];
    if (wants()) give_back(f, n, given, slope, s, dx(f, first));
    if (trains(0)) pour(sink(f, 0, first), channels_, s.products);
    if (trains(1)) pour(sink(f, 1, first), channels_, s.sums);
  }

  Size kept_size(Size) const override { return 2 * channels_; }
  Size workspace_size(Size) const override { return kScratchArrays * channels_; }
  std::vector<Size> param_sizes() const override { return {channels_, channels_}; }
  Size statistics_end() const override { return std::max(mean_at_, variance_at_) + channels_; }

 private:
  // One number per channel each.
  static constexpr Size kScratchArrays = 7;
  struct Scratch {
    float *partial, *part;   // of sums: inside a slab of rows, and of it
    float *sums, *products;  // over the batch
    float *by_dy, *by_x, *shift;
  };
  Scratch scratch(const Frame& f) const {
    const auto at = [&](Size i) { return f.workspace + i * channels_; };
    return {at(0), at(1), at(2), at(3), at(4), at(5), at(6)};
  }

  Pixels pixels(Size examples) const { return {examples * in().rows, channels_}; }
  bool by_batch(const Frame& f) const { return f.by_batch && !frozen_; }
  float* mean(const Frame& f) const { return kept(f); }
  float* inverse(const Frame& f) const { return kept(f) + channels_; }
  float weight(const Frame& f, Size channel) const { return has(0) ? param(f, 0)[channel] : 1.0f; }

  // to = the sum over all rows, slab by slab: a batch may have many rows, and the sums are floats. add(some, at) leaves
  // the sum of a slab that begins at number `at` in s.part.
  template <class Add> void total(const Pixels& n, const Scratch& s, float* to, Add add) const {
    constexpr Size kSlab = 1024;  // rows
    std::fill_n(to, channels_, 0.0f);
    for (Size row = 0; row < n.pixels; row += kSlab) {
      add(Pixels{std::min(kSlab, n.pixels - row), channels_}, row * channels_);
      for (Size c = 0; c < channels_; ++c) to[c] += s.part[c];
    }
  }

  void measure(const Frame& f, const Pixels& n, const float* given, const Scratch& s) const {
    if (n.pixels < 2)
      throw std::runtime_error(
          "a batch of one example shows a batch norm only one value per channel; use another batch_size");
    const double rows = double(n.pixels);
    total(n, s, s.sums, [&](const Pixels& some, Size at) { sum_channels(some, given + at, s.partial, s.part); });
    for (Size c = 0; c < channels_; ++c) mean(f)[c] = float(double(s.sums[c]) / rows);
    total(n, s, s.sums,
          [&](const Pixels& some, Size at) { sum_squares(some, given + at, mean(f), s.partial, s.part); });
    for (Size c = 0; c < channels_; ++c) inverse(f)[c] = inverse_root(double(s.sums[c]) / rows, eps_);
    if (!f.notes) return;
    for (Size c = 0; c < channels_; ++c) {
      note(f.statistics[mean_at_ + c], double(mean(f)[c]));
      note(f.statistics[variance_at_ + c], double(s.sums[c]) / (rows - 1));  // unbiased, unlike the one above
    }
  }

  void note(float& running, double found) const {
    running = float((1.0 - momentum_) * double(running) + momentum_ * found);
  }

  void recall(const Frame& f) const {
    for (Size c = 0; c < channels_; ++c) {
      mean(f)[c] = f.statistics[mean_at_ + c];
      inverse(f)[c] = inverse_root(double(f.statistics[variance_at_ + c]), eps_);
    }
  }

  // dx = (dy - mean(dy) - xhat * mean(dy * xhat)) * weight / deviation, means over the batch; where mean and deviation
  // are running ones, which the batch does not move, dx = dy * weight / deviation.
  void give_back(const Frame& f, const Pixels& n, const float* given, const float* slope, const Scratch& s,
                 float* to) const {
    const double share = by_batch(f) ? 1.0 / double(n.pixels) : 0.0;
    for (Size c = 0; c < channels_; ++c) {
      const double scale = double(inverse(f)[c]) * double(weight(f, c));
      s.by_dy[c] = float(scale);
      s.shift[c] = float(-scale * double(s.sums[c]) * share);
      s.by_x[c] = float(-scale * double(inverse(f)[c]) * double(s.products[c]) * share);
    }
    const auto combine = adds() ? combine_channels<true> : combine_channels<false>;
    combine(n, slope, given, mean(f), s.by_dy, s.by_x, s.shift, to);
  }

  Size channels_, mean_at_, variance_at_;
  double eps_, momentum_;
  bool frozen_;
};

// ---- by row --------------------------------------------------------------------------------------------------------

struct Moments {
  float mean, inverse;  // 1 / deviation
};

FF_CLONES void normalise_row(Size n, double eps, const float* __restrict x, const float* __restrict weight,
                             const float* __restrict bias, float* __restrict y, Moments& to) {
  const float mean = float(sum_of(n, [=](Size i) { return x[i]; }) / double(n));
  const double squares = sum_of(n, [=](Size i) { return (x[i] - mean) * (x[i] - mean); });
  const float inverse = inverse_root(squares / double(n), eps);
  for (Size i = 0; i < n; ++i) y[i] = (x[i] - mean) * inverse * weight[i] + bias[i];
  to = {mean, inverse};
}

template <bool Add>
FF_CLONES void row_back(Size n, const Moments& of, const float* __restrict x, const float* __restrict weight,
                        const float* __restrict dy, float* __restrict dx) {
  const float mean = of.mean, inverse = of.inverse;
  const double sum = sum_of(n, [=](Size i) { return dy[i] * weight[i]; });
  const double product = sum_of(n, [=](Size i) { return dy[i] * weight[i] * ((x[i] - mean) * inverse); });
  const float by_x = float(-double(inverse) * double(inverse) * product / double(n));
  const float shift = float(-double(inverse) * sum / double(n));
  for (Size i = 0; i < n; ++i) {
    const float d = dy[i] * weight[i] * inverse + (x[i] - mean) * by_x + shift;
    dx[i] = Add ? dx[i] + d : d;
  }
}

FF_CLONES void weight_back(Size rows, Size n, const float* __restrict x, const float* __restrict dy,
                           const float* __restrict moments, float* __restrict partial, float* __restrict sums) {
  sum_columns_of(rows, n, partial, sums, [=](Size r, Size c) {
    return dy[r * n + c] * ((x[r * n + c] - moments[2 * r]) * moments[2 * r + 1]);
  });
}

FF_CLONES void bias_back(Size rows, Size n, const float* __restrict dy, float* __restrict partial,
                         float* __restrict sums) {
  sum_columns_of(rows, n, partial, sums, [=](Size r, Size c) { return dy[r * n + c]; });
}

class LayerNorm : public Layer {
 public:
  explicit LayerNorm(Spec given) : Layer(std::move(given)), n_(in().channels), eps_(spec().setting("eps")) {}

  void forward(const Frame& f, Size first, Size count) const override {
    const float* weight = weight_or_ones(f);
    const float* bias = param(f, 1);
    if (!bias) bias = filled(f, 1, 0.0f);
    for (Size r = 0; r < count * in().rows; ++r) {
      Moments m;
      normalise_row(n_, eps_, x(f, first) + r * n_, weight, bias, y(f, first) + r * n_, m);
      float* to = moments(f, first) + 2 * r;
      to[0] = m.mean;
      to[1] = m.inverse;
    }
  }

  void backward(const Frame& f, Size first, Size count) const override {
    const Size rows = count * in().rows;
    if (wants()) give_back(f, first, rows);
    float *sums = f.workspace, *partial = f.workspace + n_;
    if (trains(0)) {
      weight_back(rows, n_, x(f, first), dy(f, first), moments(f, first), partial, sums);
      pour(sink(f, 0, first), n_, sums);
    }
    if (trains(1)) {
      bias_back(rows, n_, dy(f, first), partial, sums);
      pour(sink(f, 1, first), n_, sums);
    }
  }

  Size kept_size(Size batch) const override { return batch * in().rows * 2; }
  Size workspace_size(Size) const override { return 2 * n_; }
  std::vector<Size> param_sizes() const override { return {n_, n_}; }

 private:
  float* moments(const Frame& f, Size example) const { return kept(f) + example * in().rows * 2; }

  const float* filled(const Frame& f, Size place, float value) const {
    std::fill_n(f.workspace + place * n_, n_, value);
    return f.workspace + place * n_;
  }
  const float* weight_or_ones(const Frame& f) const { return has(0) ? param(f, 0) : filled(f, 0, 1.0f); }

  void give_back(const Frame& f, Size first, Size rows) const {
    const float* weight = weight_or_ones(f);
    const auto back = adds() ? row_back<true> : row_back<false>;
    for (Size r = 0; r < rows; ++r) {
      const float* m = moments(f, first) + 2 * r;
      back(n_, {m[0], m[1]}, x(f, first) + r * n_, weight, dy(f, first) + r * n_, dx(f, first) + r * n_);
    }
  }

  Size n_;
  double eps_;
};

}  // namespace

void enter_norm_layers(LayerMakers& layers) {
  layers[Op::kGroupNorm] = make<GroupNorm>;
  layers[Op::kBatchNorm] = make<BatchNorm>;
  layers[Op::kLayerNorm] = make<LayerNorm>;
}

}  // namespace fastfed
