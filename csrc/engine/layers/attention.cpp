// Scaled-dot-product attention: softmax(scale * Q K^T + mask) V, head by head, so that a head's scores stay near.
#include <algorithm>
#include <limits>

#include "curves.h"
#include "engine/layers/layer.h"
#include "engine/layers/sums.h"
#include "engine/layers/transpose.h"
#include "simd/clones.h"
#include "simd/loops.h"
#include "simd/products.h"

namespace fastfed {
namespace {

constexpr float kNever = -std::numeric_limits<float>::infinity();

// ---- softmax -------------------------------------------------------------------------------------------------------

// Every row of scores (rows, keys) with its largest number taken off; row r looks at its first `shown + r * more` keys
// and at no other.
// What sees no key at all has no top: its probabilities are no numbers, or, where `zero_if_blind`, 0.
FF_CLONES void take_tops_off(Size rows, Size keys, Size shown, Size more, bool zero_if_blind, float* scores) {
  for (Size r = 0; r < rows; ++r, scores += keys, shown += more) {
    const Size n = shown < keys ? shown : keys;
    float top = kNever;
#pragma omp simd reduction(max : top)
    for (Size k = 0; k < n; ++k) top = top > scores[k] ? top : scores[k];
    if (zero_if_blind && top == kNever) top = 0.0f;
    for (Size k = 0; k < n; ++k) scores[k] -= top;
    for (Size k = n; k < keys; ++k) scores[k] = kNever;
  }
}

// In one go over all rows: short ones would leave half a register empty each.
FF_CLONES void exponentiate(Size n, float* a) {
  for (Size i = 0; i < n; ++i) a[i] = exp_of(a[i]);
}

FF_CLONES void divide_by_sums(Size rows, Size keys, float* p) {
  for (Size r = 0; r < rows; ++r, p += keys) {
    const double sum = sum_of(keys, [=](Size k) { return p[k]; });
    const float share = sum == 0.0 ? 0.0f : float(1.0 / sum);
    for (Size k = 0; k < keys; ++k) p[k] *= share;
  }
}

// slopes: of the probabilities p, and then of the products before they were scaled and softened. Of every row the first
// `used` of `keys` numbers.
FF_CLONES void soften_back(Size rows, Size keys, Size used, float scale, const float* __restrict p,
                           float* __restrict slopes) {
  for (Size r = 0; r < rows; ++r, p += keys, slopes += keys) {
    const float mean = float(sum_of(used, [=](Size k) { return p[k] * slopes[k]; }));
    for (Size k = 0; k < used; ++k) slopes[k] = p[k] * (slopes[k] - mean) * scale;
  }
}

// ---- the layer -----------------------------------------------------------------------------------------------------

// Where an operand lies: number `at` of an input's example is the first channel of its first head's first row.
struct Place {
  int input;
  Size at, head, row;  // the last two: how far heads and rows lie apart
};

struct Matrix {
  float* data;
  Size row;
};

class Attention : public Layer {
 public:
  explicit Attention(Spec given)
      : Layer(std::move(given)),
        heads_(spec().whole("heads")),
        queries_(spec().whole("queries")),
        keys_(spec().whole("keys")),
        width_(spec().whole("width")),
        value_width_(spec().whole("value_width")),
        mask_(spec().whole("mask")),
        mask_head_(spec().whole("mask_head")),
        padding_(spec().whole("padding")),
        unless_all_(spec().whole("unless_all") != 0),
        causal_(spec().whole("causal") != 0),
        zero_if_blind_(spec().whole("zero_if_blind") != 0),
        scale_(float(spec().setting("scale"))),
        query_(place("query")),
        key_(place("key")),
        value_(place("value")) {
    check(query_, queries_, width_);
    check(key_, keys_, width_);
    check(value_, keys_, value_width_);
    if (out().size() != queries_ * heads_ * value_width_) throw std::invalid_argument("attention: an odd output");
  }

  void forward(const Frame& f, Size first, Size count) const override {
    const Scratch s = scratch(f);
    for (Size e = first; e < first + count; ++e) {
      const bool padded = note_padding(f, e, s.padding);
      for (Size h = 0; h < heads_; ++h) {
        const Matrix q = at(f, query_, e, h), k = at(f, key_, e, h), v = at(f, value_, e, h);
        const Matrix mask = mask_of(f, h, padded, s), result = head(y(f, e), h);
        float* p = probabilities(f, e, h);
        transpose_tile<false>(keys_, width_, k.data, k.row, s.turned, keys_);
        for_portions([&](Size begin, Size rows, Size used) {
          float* scores = p + begin * keys_;
          const float* plus = mask.data ? mask.data + begin * mask.row : nullptr;
          products().outer({rows, used, width_, 1, q.data + begin * q.row, q.row, 1, 0, s.turned, keys_, 0, scores,
                            keys_, scale_, plus, mask.row});
          take_tops_off(rows, keys_, causal_ ? begin + 1 : keys_, causal_, zero_if_blind_, scores);
          exponentiate(rows * keys_, scores);
          divide_by_sums(rows, keys_, scores);
          products().outer({rows, value_width_, used, 1, scores, keys_, 1, 0, v.data, v.row, 0,
                            result.data + begin * result.row, result.row, 1.0f, nullptr, 0});
        });
      }
    }
  }

  void backward(const Frame& f, Size first, Size count) const override {
    const Scratch s = scratch(f);
    for (Size e = first; e < first + count; ++e) {
      for (int i = 0; i < int(spec().inputs.size()); ++i)
        if (wants(i) && !adds(i)) std::fill_n(dx(f, e, i), in(i).size(), 0.0f);
      for (Size h = 0; h < heads_; ++h) head_back(f, e, h, s);
    }
  }

  Size kept_size(Size batch) const override { return batch * heads_ * queries_ * keys_; }
  Size workspace_size(Size) const override {
    return std::max(width_, value_width_) * keys_ + keys_ + 2 * queries_ * keys_;
  }
  Size constants_end() const override { return mask_ < 0 ? 0 : mask_ + (heads_ - 1) * mask_head_ + queries_ * keys_; }

 private:
  // Keys or values with their rows as columns; what padding adds to scores; gradients of scores; both masks together.
  struct Scratch {
    float *turned, *padding, *slopes, *masks;
  };
  Scratch scratch(const Frame& f) const {
    float* padding = f.workspace + std::max(width_, value_width_) * keys_;
    float* slopes = padding + keys_;
    return {f.workspace, padding, slopes, slopes + queries_ * keys_};
  }

  Place place(const std::string& name) const {
    return {int(spec().whole(name + "_input")), spec().whole(name + "_at"), spec().whole(name + "_head"),
            spec().whole(name + "_row")};
  }

  void check(const Place& p, Size rows, Size channels) const {
    if (p.input < 0 || p.input >= int(spec().inputs.size()))
      throw std::invalid_argument("attention: names an input that is not there");
    const Size last = p.at + (heads_ - 1) * p.head + (rows - 1) * p.row + channels;
    if (p.at < 0 || p.head < 0 || p.row < 0 || last > in(p.input).size())
      throw std::invalid_argument("attention: looks beyond its input");
  }

  Matrix at(const Frame& f, const Place& p, Size e, Size h) const {
    return {x(f, e, p.input) + p.at + h * p.head, p.row};
  }
  Matrix gradient_at(const Frame& f, const Place& p, Size e, Size h) const {
    return {dx(f, e, p.input) + p.at + h * p.head, p.row};
  }
  Matrix head(float* all, Size h) const { return {all + h * value_width_, heads_ * value_width_}; }
  float* probabilities(const Frame& f, Size e, Size h) const { return kept(f) + (e * heads_ + h) * queries_ * keys_; }

  // What is added to the scores: nothing, the same row for all queries, or a row for each.
  Matrix mask_of(const Frame& f, Size h, bool padded, const Scratch& s) const {
    if (mask_ < 0) return {padded ? s.padding : nullptr, 0};
    const float* mask = f.constants + mask_ + h * mask_head_;
    copy(queries_ * keys_, mask, s.masks);
    for (Size q = 0; padded && q < queries_; ++q) add_to(keys_, s.padding, s.masks + q * keys_);
    return {s.masks, keys_};
  }

  // Whether any key of an example is a token that is not to be looked at, and what hides these.
  bool note_padding(const Frame& f, Size e, float* to) const {
    if (padding_ < 0) return false;
    const std::int32_t* token = f.tokens + e * keys_;
    const Size hidden = std::count(token, token + keys_, std::int32_t(padding_));
    if (hidden == 0 || (hidden == keys_ && unless_all_)) return false;
    for (Size k = 0; k < keys_; ++k) to[k] = token[k] == padding_ ? kNever : 0.0f;
    return true;
  }

  // work(first row, rows, keys that they look at): where nobody looks ahead, the first rows look at few.
  template <class Work> void for_portions(Work work) const {
    constexpr Size kPortion = 48;
    const Size portion = causal_ ? kPortion : queries_;
    for (Size begin = 0; begin < queries_; begin += portion) {
      const Size rows = std::min(portion, queries_ - begin);
      work(begin, rows, causal_ ? std::min(keys_, begin + rows) : keys_);
    }
  }

  void head_back(const Frame& f, Size e, Size h, const Scratch& s) const {
    const Matrix q = at(f, query_, e, h), k = at(f, key_, e, h), v = at(f, value_, e, h);
    const Matrix slope = head(dy(f, e), h);
    const float* p = probabilities(f, e, h);
    transpose_tile<false>(keys_, value_width_, v.data, v.row, s.turned, keys_);
    for_portions([&](Size begin, Size rows, Size used) {
      const float* given = slope.data + begin * slope.row;
      const float* shares = p + begin * keys_;
      if (wants(value_.input))
        add_turned(used, value_width_, rows, shares, given, slope.row, gradient_at(f, value_, e, h));
      products().outer(
          {rows, used, value_width_, 1, given, slope.row, 1, 0, s.turned, keys_, 0, s.slopes, keys_, 1.0f, nullptr, 0});
      soften_back(rows, keys_, used, scale_, shares, s.slopes);
      if (wants(key_.input))
        add_turned(used, width_, rows, s.slopes, q.data + begin * q.row, q.row, gradient_at(f, key_, e, h));
      if (!wants(query_.input)) return;
      const Matrix dq = gradient_at(f, query_, e, h);
      float* to = dq.data + begin * dq.row;
      products().outer({rows, width_, used, 1, s.slopes, keys_, 1, 0, k.data, k.row, 0, to, dq.row, 1.0f, to, dq.row});
    });
  }

  // to (keys, width) += a (rows, keys)^T . b (rows, width)
  void add_turned(Size keys, Size width, Size rows, const float* a, const float* b, Size b_row,
                  const Matrix& to) const {
    products().outer({keys, width, rows, 1, a, 1, keys_, 0, b, b_row, 0, to.data, to.row, 1.0f, to.data, to.row});
  }

  Size heads_, queries_, keys_, width_, value_width_, mask_, mask_head_, padding_;
  bool unless_all_, causal_, zero_if_blind_;
  float scale_;
  Place query_, key_, value_;
};

}  // namespace

void enter_attention_layers(LayerMakers& layers) { layers[Op::kAttention] = make<Attention>; }

}  // namespace fastfed
