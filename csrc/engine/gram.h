// The Gram form of a first layer, for rules that are linear in the gradient: its weights need not move while a client
// trains. With X the client's examples (n, in), every move of the weights (out, in) is some A^T X with A (n, out), so
// that on a batch b the layer gives W X_b^T = s W0 X_b^T + A^T (X X_b^T): rows of two products that are made once. The
// weights themselves are needed at the end only.
#pragma once

#include "engine/gram_store.h"
#include "engine/layers/layer.h"
#include "kernels/aligned.h"

namespace fastfed {

// The layer of a program that can be trained so: dense, of inputs that no trained layer comes before.
struct FirstLayer {
  int place = -1;             // its number; -1: there is none
  int input = 0, output = 0;  // values
  Size in = 0, out = 0;       // their channels
  Size weight = 0, bias = 0;  // offsets in the packed vector; bias -1: none

  bool exists() const { return place >= 0; }
  Size weight_end() const { return weight + in * out; }
};

// When a round trains first layers so; tests and benchmarks ask for one or the other.
enum class GramUse { kWhereItPays, kNever, kAlways };

class GramForm {
 public:
  GramForm(const FirstLayer& layer, GramStore& store) : layer_(layer), store_(store) {}

  // Whether it takes less time than the layer itself for a client with n examples that goes through `seen` of them, one
  // after another. A function of these numbers alone, so that the bits of a run are, too.
  static bool pays(const FirstLayer& layer, Size n, Size seen);

  // Before a client with n examples: where they are to be put, (n, in).
  float* take_inputs(Size n);
  // Once they are there: from the weights `w` (out, in). False if a product of the inputs is no finite number.
  bool begin(const float* w, Size batch);

  // y (count, out) of these of the client's examples; bias (out,) or null. What is wanted `ahead`, or null, comes
  // meanwhile.
  void forward(const Size* places, Size count, const float* bias, float* y, Ahead* ahead);

  // One step of a rule: u = momentum u + gain (gradient + decay w + prox (w - w0)), w -= lr u; without momentum u is
  // not kept. The gradient is that of `dy` (count, out).
  struct Step {
    double lr, momentum, gain, decay, prox;
    bool keeps;  // u
  };
  void step(const Size* places, Size count, const float* dy, const Step& step);

  // The weights after all steps, in `w`, which holds those of the beginning.
  void finish(float* w) const;

 private:
  Size moves_size() const { return n_ * layer_.out; }
  bool measure();
  bool multiply();
  void keep(const Size* places, Size count, const float* dy, const Step& step);

  FirstLayer layer_;
  GramStore& store_;
  Size n_ = 0;
  bool moved_ = false;           // whether A can be other than 0
  double share_ = 1, pull_ = 0;  // s; and u's own share of W0
  const float* gram_ = nullptr;  // X X^T, ours or the store's
  std::vector<std::uint64_t> marks_;
  // X; X X^T; X W0^T; A; what u has of X, as A; rows of X X^T of the batch at hand.
  GrowingArray inputs_, own_gram_, outputs_, moves_, velocity_, rows_;
};

}  // namespace fastfed
