// Layers without parameters: curves, sums, dropout, and changes of a value's kind.
#include <algorithm>

#include "curves.h"
#include "engine/layers/layer.h"
#include "engine/layers/transpose.h"
#include "simd/clones.h"
#include "simd/loops.h"
#include "simd/simd.h"

namespace fastfed {
namespace {

void pass_on(Size n, const float* from, float* to, bool add) { add ? add_to(n, from, to) : copy(n, from, to); }

// ---- curves --------------------------------------------------------------------------------------------------------

// A curve says what becomes of x, and of dy on the way back; `v` there is y if kFromOutput, else x.

struct Relu {
  static constexpr bool kFromOutput = true;
  FF_FN float of(float x) { return x < 0.0f ? 0.0f : x; }
  FF_FN float back(float v, float dy) { return v <= 0.0f ? 0.0f : dy; }
};

struct Sigmoid {
  static constexpr bool kFromOutput = true;
  FF_FN float of(float x) { return sigmoid_of(x); }
  FF_FN float back(float v, float dy) { return dy * (v * (1.0f - v)); }
};

struct Tanh {
  static constexpr bool kFromOutput = true;
  FF_FN float of(float x) { return tanh_of(x); }
  FF_FN float back(float v, float dy) { return dy * (1.0f - v * v); }
};

struct Silu {
  static constexpr bool kFromOutput = false;
  FF_FN float of(float x) { return x * sigmoid_of(x); }
  FF_FN float back(float v, float dy) {
    const Logistic s = logistic_of(v);
    return dy * (s.value * (1.0f + v * s.rest));
  }
};

struct Gelu {
  static constexpr bool kFromOutput = false;
  FF_FN float of(float x) { return x * normal_mass_of(x); }
  FF_FN float back(float v, float dy) {
    const float density = 0.398942280f * exp_of(-0.5f * (v * v));
    return dy * (normal_mass_of(v) + v * density);
  }
};

// (1 + tanh(u)) / 2 is the sigmoid of 2u, which does not cancel where u is far below 0.
struct GeluTanh {
  static constexpr bool kFromOutput = false;
  static constexpr float kSlope = 1.59576912f, kCubic = 0.0713548163f;  // 2 sqrt(2 / pi), and 0.044715 times it
  FF_FN float of(float x) { return x * sigmoid_of(x * (kSlope + kCubic * (x * x))); }
  FF_FN float back(float v, float dy) {
    const Logistic s = logistic_of(v * (kSlope + kCubic * (v * v)));
    return dy * (s.value + v * (s.value * s.rest) * (kSlope + 3.0f * kCubic * (v * v)));
  }
};

template <class Curve> FF_CLONES void apply(Size n, const float* __restrict x, float* __restrict y) {
  for (Size i = 0; i < n; ++i) y[i] = Curve::of(x[i]);
}

template <class Curve, bool Add>
FF_CLONES void apply_back(Size n, const float* __restrict v, const float* __restrict dy, float* __restrict dx) {
  for (Size i = 0; i < n; ++i) dx[i] = Add ? dx[i] + Curve::back(v[i], dy[i]) : Curve::back(v[i], dy[i]);
}

template <class Curve> class Pointwise : public Layer {
 public:
  using Layer::Layer;

  void forward(const Frame& f, Size first, Size count) const override {
    apply<Curve>(count * out().size(), x(f, first), y(f, first));
  }

  void backward(const Frame& f, Size first, Size count) const override {
    if (!wants()) return;
    const float* v = Curve::kFromOutput ? y(f, first) : x(f, first);
    const auto back = adds() ? apply_back<Curve, true> : apply_back<Curve, false>;
    back(count * out().size(), v, dy(f, first), dx(f, first));
  }
};

std::unique_ptr<Layer> make_gelu(Spec spec) {
  return spec.whole("tanh") != 0 ? make<Pointwise<GeluTanh>>(std::move(spec)) : make<Pointwise<Gelu>>(std::move(spec));
}

// ---- relu in place -------------------------------------------------------------------------------------------------

// With one pointer: the compiler's test for overlap would send the loops above down their scalar branch.

FF_CLONES void relu_in_place(Size n, float* y) {
  for (Size i = 0; i < n; ++i) y[i] = Relu::of(y[i]);
}

FF_CLONES void relu_back_in_place(Size n, const float* __restrict y, float* __restrict d) {
  for (Size i = 0; i < n; ++i) d[i] = Relu::back(y[i], d[i]);
}

class ReluLayer : public Pointwise<Relu> {
 public:
  explicit ReluLayer(Spec given) : Pointwise<Relu>(std::move(given)) {
    if (spec().in_place && adds()) throw std::invalid_argument("relu: cannot both run in place and add to a gradient");
  }

  void forward(const Frame& f, Size first, Size count) const override {
    if (!spec().in_place) return Pointwise<Relu>::forward(f, first, count);
    relu_in_place(count * out().size(), y(f, first));
  }

  void backward(const Frame& f, Size first, Size count) const override {
    if (!spec().in_place) return Pointwise<Relu>::backward(f, first, count);
    if (wants()) relu_back_in_place(count * out().size(), y(f, first), dy(f, first));
  }
};

// ---- sums of two values --------------------------------------------------------------------------------------------

FF_CLONES void add_two(Size n, const float* __restrict a, const float* __restrict b, float* __restrict y) {
  for (Size i = 0; i < n; ++i) y[i] = a[i] + b[i];
}

class Add : public Layer {
 public:
  using Layer::Layer;

  void forward(const Frame& f, Size first, Size count) const override {
    add_two(count * out().size(), x(f, first, 0), x(f, first, 1), y(f, first));
  }

  void backward(const Frame& f, Size first, Size count) const override {
    for (int i = 0; i < 2; ++i)
      if (wants(i)) pass_on(count * out().size(), dy(f, first), dx(f, first, i), adds(i));
  }
};

// ---- the two orders of an image ------------------------------------------------------------------------------------

void transpose_matrix(Size rows, Size cols, const float* from, float* to, bool add) {
  if (rows == 1 || cols == 1) return pass_on(rows * cols, from, to, add);
  add ? transpose<true>(rows, cols, from, to, rows) : transpose<false>(rows, cols, from, to, rows);
}

// Stored pixels first, channels last; torch's order has the channels first.
void to_torch_order(const Shape& image, const float* from, float* to, bool add) {
  transpose_matrix(image.rows, image.channels, from, to, add);
}
void from_torch_order(const Shape& image, const float* from, float* to, bool add) {
  transpose_matrix(image.channels, image.rows, from, to, add);
}

class Flatten : public Layer {
 public:
  using Layer::Layer;

  void forward(const Frame& f, Size first, Size count) const override {
    if (in().kind != Kind::kImage) return copy(count * out().size(), x(f, first), y(f, first));
    for (Size e = first; e < first + count; ++e) to_torch_order(in(), x(f, e), y(f, e), false);
  }

  void backward(const Frame& f, Size first, Size count) const override {
    if (!wants()) return;
    if (in().kind != Kind::kImage) return pass_on(count * out().size(), dy(f, first), dx(f, first), adds());
    for (Size e = first; e < first + count; ++e) from_torch_order(in(), dy(f, e), dx(f, e), adds());
  }
};

class Image : public Layer {
 public:
  using Layer::Layer;

  void forward(const Frame& f, Size first, Size count) const override {
    for (Size e = first; e < first + count; ++e) from_torch_order(out(), x(f, e), y(f, e), false);
  }

  void backward(const Frame& f, Size first, Size count) const override {
    if (!wants()) return;
    for (Size e = first; e < first + count; ++e) to_torch_order(out(), dy(f, e), dx(f, e), adds());
  }
};

// ---- one step of a sequence ----------------------------------------------------------------------------------------

class Select : public Layer {
 public:
  explicit Select(Spec given) : Layer(std::move(given)), step_(spec().whole("index")) {
    if (step_ < 0) step_ += in().rows;
    if (step_ < 0 || step_ >= in().rows) throw std::invalid_argument("select: index is outside the sequence");
  }

  void forward(const Frame& f, Size first, Size count) const override {
    for (Size e = first; e < first + count; ++e) copy(out().channels, x(f, e) + step_ * out().channels, y(f, e));
  }

  void backward(const Frame& f, Size first, Size count) const override {
    if (!wants()) return;
    for (Size e = first; e < first + count; ++e) {
      float* all = dx(f, e);
      if (!adds()) std::fill(all, all + in().size(), 0.0f);
      pass_on(out().channels, dy(f, e), all + step_ * out().channels, adds());
    }
  }

 private:
  Size step_;
};

// ---- dropout -------------------------------------------------------------------------------------------------------

// Uniform numbers [begin, begin + n) of a client's stream.
void uniform_run(const Stream& stream, Word client, Size begin, Size n, float* out) {
  const auto draw = vector_loops<float>().uniform;
  const Size skipped = begin % 4, head = skipped ? std::min(n, 4 - skipped) : 0;
  if (head > 0) {
    float block[4];
    draw(stream, client, Word(begin / 4), 4, block);
    copy(head, block + skipped, out);
  }
  if (n > head) draw(stream, client, Word((begin + head) / 4), n - head, out + head);
}

FF_CLONES void numbers_to_factors(Size n, float p, float scale, float* numbers) {
  for (Size i = 0; i < n; ++i) numbers[i] = numbers[i] >= p ? scale : 0.0f;
}

FF_CLONES void multiply(Size n, const float* __restrict x, const float* __restrict factors, float* __restrict y) {
  for (Size i = 0; i < n; ++i) y[i] = x[i] * factors[i];
}

FF_CLONES void multiply_and_add(Size n, const float* __restrict x, const float* __restrict factors,
                                float* __restrict y) {
  for (Size i = 0; i < n; ++i) y[i] += x[i] * factors[i];
}

// Keeps each element's factor: 0 or 1 / (1 - p). Numbers are dealt out in torch's order of the whole batch.
class Dropout : public Layer {
 public:
  explicit Dropout(Spec given)
      : Layer(std::move(given)),
        p_(float(spec().setting("p"))),
        scale_(p_ < 1.0f ? float(1.0 / (1.0 - spec().setting("p"))) : 0.0f),
        index_(spec().whole("index")) {}

  void forward(const Frame& f, Size first, Size count) const override {
    const Size size = out().size();
    if (!f.dropout) return void(std::copy(x(f, first), x(f, first) + count * size, y(f, first)));
    float* factors = kept(f) + first * size;
    if (out().kind == Kind::kImage)
      for (Size e = 0; e < count; ++e) draw_image(f, first + e, factors + e * size);
    else
      draw(f, first * size, count * size, factors);
    multiply(count * size, x(f, first), factors, y(f, first));
  }

  void backward(const Frame& f, Size first, Size count) const override {
    if (!wants()) return;
    const auto back = adds() ? multiply_and_add : multiply;
    back(count * out().size(), dy(f, first), kept(f) + first * out().size(), dx(f, first));
  }

  Size kept_size(Size batch) const override { return batch * out().size(); }
  Size workspace_size(Size) const override { return out().kind == Kind::kImage ? out().size() : 0; }

 private:
  // The factors of elements [begin, begin + n) in torch's order.
  void draw(const Frame& f, Size begin, Size n, float* factors) const {
    const StreamKey& key = f.dropout[index_];
    uniform_run({key.key0, key.key1, f.step, f.round}, f.client, begin, n, factors);
    numbers_to_factors(n, p_, scale_, factors);
  }

  void draw_image(const Frame& f, Size example, float* factors) const {
    draw(f, example * out().size(), out().size(), f.workspace);
    from_torch_order(out(), f.workspace, factors, false);
  }

  float p_, scale_;
  Size index_;
};

}  // namespace

void enter_elementwise_layers(LayerMakers& layers) {
  layers[Op::kRelu] = make<ReluLayer>;
  layers[Op::kGelu] = make_gelu;
  layers[Op::kSigmoid] = make<Pointwise<Sigmoid>>;
  layers[Op::kTanh] = make<Pointwise<Tanh>>;
  layers[Op::kSilu] = make<Pointwise<Silu>>;
  layers[Op::kAdd] = make<Add>;
  layers[Op::kDropout] = make<Dropout>;
  layers[Op::kFlatten] = make<Flatten>;
  layers[Op::kImage] = make<Image>;
  layers[Op::kSelect] = make<Select>;
}

}  // namespace fastfed
