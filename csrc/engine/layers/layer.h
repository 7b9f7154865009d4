// One layer of a local-training program: forward and backward of some examples of one client's batch.
//
// A value holds `rows` x `channels` numbers per example; an image has a row for each of its height x width pixels. A
// layer is shared by all threads and never changes; everything that does lies in the thread's Frame.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "philox.h"
#include "simd/ahead.h"

namespace fastfed {

using Size = std::int64_t;

enum class Kind { kVector, kSequence, kImage, kTokens, kSparse };

struct Shape {
  Kind kind;
  Size rows, channels, height, width;
  Size size() const { return rows * channels; }
};

// Every layer that there is, under the name that the tracer has for it (fastfed/program).
#define FF_OPS(DO)                        \
  DO(linear, kLinear)                     \
  DO(conv2d, kConv2d)                     \
  DO(max_pool, kMaxPool)                  \
  DO(adaptive_max_pool, kAdaptiveMaxPool) \
  DO(avg_pool, kAvgPool)                  \
  DO(adaptive_avg_pool, kAdaptiveAvgPool) \
  DO(relu, kRelu)                         \
  DO(gelu, kGelu)                         \
  DO(sigmoid, kSigmoid)                   \
  DO(tanh, kTanh)                         \
  DO(silu, kSilu)                         \
  DO(add, kAdd)                           \
  DO(dropout, kDropout)                   \
  DO(flatten, kFlatten)                   \
  DO(image, kImage)                       \
  DO(select, kSelect)                     \
  DO(group_norm, kGroupNorm)              \
  DO(batch_norm, kBatchNorm)              \
  DO(layer_norm, kLayerNorm)              \
  DO(embedding, kEmbedding)               \
  DO(lstm, kLstm)                         \
  DO(attention, kAttention)               \
  DO(pick, kPick)                         \
  DO(concatenate, kConcatenate)           \
  DO(add_parameter, kAddParameter)        \
  DO(scale, kScale)                       \
  DO(mean_rows, kMeanRows)                \
  DO(sparse_linear, kSparseLinear)
#define FF_ENTRY(name, Number) Number,
enum class Op { FF_OPS(FF_ENTRY) kCount };
#undef FF_ENTRY

Op op_of(const std::string& name);  // std::invalid_argument if there is no such layer
const char* name_of(Op op);

// Where a layer's parameter is: an offset in the packed vector, kAbsent, or, below that, a place among the constants,
// which nobody trains.
constexpr Size kAbsent = -1;
inline bool is_constant(Size offset) { return offset < kAbsent; }
inline Size constant_at(Size offset) { return kAbsent - 1 - offset; }

// What the tracer says of a layer (fastfed/program), and what the program adds to it.
struct Spec {
  Op op;
  std::vector<int> inputs;
  int output;
  std::vector<Size> params;  // where they are
  std::map<std::string, double> settings;

  std::vector<Shape> input_shapes;
  Shape output_shape;
  std::vector<bool> wanted;    // per input: whether its gradient is needed at all
  std::vector<bool> add_to;    // per input: whether its gradient already holds another layer's share
  bool in_place = false;       // output and input 0 are the same memory, data and gradient
  bool by_example = false;     // called for one example at a time
  bool tracked = false;        // its weight is the program's table (program.h), of which a batch moves a few rows
  bool shares_params = false;  // another layer uses its parameters too: gradients are added to, never overwritten
  int place = 0;               // its number in the program: whose `kept` memory it has

  double setting(const std::string& name) const {
    const auto found = settings.find(name);
    if (found == settings.end()) throw std::invalid_argument(name_of(op) + (": lacks the setting " + name));
    return found->second;
  }
  Size whole(const std::string& name) const { return Size(setting(name)); }
};

// Sparse rows of the example store (CSR).
struct SparseRows {
  const Size* starts;
  const std::int32_t* columns;
  const float* values;
};

// Where a value lies in a thread's arena: example e at data + e * stride. Gradients of values that live only while one
// example is worked on share one place (grad_stride 0).
struct Slot {
  float *data, *grad;
  Size stride, grad_stride;
};

// Where a parameter's gradient goes: to = beta * to + alpha * gradient. Either the gradient vector, or (plain SGD) the
// parameters themselves, so that no gradient is ever stored.
struct Sink {
  float* to;
  float alpha, beta;
};

struct StreamKey {
  Word key0, key1;
};

class Laps;
class RowGroups;

// One thread's state while it works on one batch of one client.
struct Frame {
  float* params;           // the client's model
  float* grads;            // as long as params
  const float* constants;  // frozen parameters and masks, the same for all clients
  bool fused;              // gradients go straight into the parameters, with -lr
  float lr;

  // Where the moved rows of the program's table are tracked, else null: a flag for every row, the model that rows
  // without it are read from, and where the gradients of rows are left for the worker to apply.
  const std::uint8_t* moved;
  const float* start;
  RowGroups* groups;

  // Running statistics of batch norms: `by_batch` normalises by the batch's own, except in frozen norms, and `notes`
  // moves the running ones towards these.
  float* statistics;
  bool by_batch, notes;

  int threads;                 // that a layer called for the whole batch may share its work among
  Size begin;                  // the first of the examples whose gradients are gathered here
  Size batch;                  // examples in this batch
  const Size* rows;            // their rows in the example store
  const std::int32_t* tokens;  // (batch, length), where the input is tokens
  SparseRows sparse;           // where the input is sparse
  const Slot* slots;           // by value
  float* const* kept;          // by layer: what it keeps from forward to backward
  float* workspace;            // for use inside one call
  Ahead* ahead;                // the inputs of the batch after this one; null where threads share the work
  Laps* laps;                  // a watch; null where nobody asks

  const StreamKey* dropout;  // by dropout layer; null where nothing is dropped
  Word round, client, step;  // of the random streams
};

class Layer {
 public:
  explicit Layer(Spec spec) : spec_(std::move(spec)) {}
  virtual ~Layer() = default;
  Layer(const Layer&) = delete;
  Layer& operator=(const Layer&) = delete;

  // Before the first example of a batch.
  virtual void begin_forward(const Frame&) const {}
  virtual void begin_backward(const Frame&) const {}
  // Works on examples [first, first + count) of the batch.
  virtual void forward(const Frame& frame, Size first, Size count) const = 0;
  virtual void backward(const Frame& frame, Size first, Size count) const = 0;
  // Floats that must survive from forward to backward for a batch, and floats of scratch for one call.
  virtual Size kept_size(Size) const { return 0; }
  virtual Size workspace_size(Size) const { return 0; }
  // The lengths of its parameters, in the order of spec().params; absent ones are ignored.
  virtual std::vector<Size> param_sizes() const { return {}; }
  // The multiplications of an example's forward pass that threads can share.
  virtual double multiplications() const { return 0.0; }
  // The name of its way, where shapes decide among several; "" where there is one.
  virtual const char* way() const { return ""; }
  // Where those of the running statistics end that it uses.
  virtual Size statistics_end() const { return 0; }
  // Where those of the constants end that it reads besides parameters.
  virtual Size constants_end() const { return 0; }

  const Spec& spec() const { return spec_; }

 protected:
  const Shape& in(int i = 0) const { return spec_.input_shapes[std::size_t(i)]; }
  const Shape& out() const { return spec_.output_shape; }
  bool wants(int i = 0) const { return spec_.wanted[std::size_t(i)]; }
  bool adds(int i = 0) const { return spec_.add_to[std::size_t(i)]; }

  float* x(const Frame& f, Size example, int i = 0) const { return data(f, spec_.inputs[std::size_t(i)], example); }
  float* dx(const Frame& f, Size example, int i = 0) const { return grad(f, spec_.inputs[std::size_t(i)], example); }
  float* y(const Frame& f, Size example) const { return data(f, spec_.output, example); }
  float* dy(const Frame& f, Size example) const { return grad(f, spec_.output, example); }
  float* kept(const Frame& f) const { return f.kept[spec_.place]; }

  bool has(std::size_t param) const { return param < spec_.params.size() && spec_.params[param] != kAbsent; }
  // Whether its gradient is asked for: it is there, and not frozen.
  bool trains(std::size_t param) const { return has(param) && !is_constant(spec_.params[param]); }
  const float* param(const Frame& f, std::size_t param) const {
    if (!has(param)) return nullptr;
    const Size offset = spec_.params[param];
    return is_constant(offset) ? f.constants + constant_at(offset) : f.params + offset;
  }
  // A layer called for one example at a time needs its old parameters until the last example: its gradients are
  // gathered in frame.grads, and the program applies them afterwards.
  Sink sink(const Frame& f, std::size_t param, Size first) const {
    const Size offset = spec_.params[param];
    if (f.fused && !spec_.by_example) return {f.params + offset, -f.lr, 1.0f};
    return {f.grads + offset, 1.0f, spec_.shares_params || first > f.begin ? 1.0f : 0.0f};
  }

 private:
  static float* data(const Frame& f, int value, Size example) {
    const Slot& slot = f.slots[value];
    return slot.data + example * slot.stride;
  }
  static float* grad(const Frame& f, int value, Size example) {
    const Slot& slot = f.slots[value];
    return slot.grad + example * slot.grad_stride;
  }

  Spec spec_;
};

// to = beta * to + alpha * value, element by element; beta is 0 or 1.
inline void pour(const Sink& sink, Size n, const float* value) {
  if (sink.beta == 0.0f)
    for (Size i = 0; i < n; ++i) sink.to[i] = sink.alpha * value[i];
  else
    for (Size i = 0; i < n; ++i) sink.to[i] += sink.alpha * value[i];
}

// Makes the layer of a spec.
std::unique_ptr<Layer> make_layer(Spec spec);

using LayerMaker = std::unique_ptr<Layer> (*)(Spec);
template <class L> std::unique_ptr<Layer> make(Spec spec) { return std::make_unique<L>(std::move(spec)); }

// Each file of layers enters the ones that it has.
struct LayerMakers {
  LayerMaker& operator[](Op op) { return makers[int(op)]; }
  LayerMaker operator[](Op op) const { return makers[int(op)]; }
  LayerMaker makers[int(Op::kCount)] = {};
};
void enter_dense_layers(LayerMakers& layers);
void enter_convolution_layers(LayerMakers& layers);
void enter_pooling_layers(LayerMakers& layers);
void enter_elementwise_layers(LayerMakers& layers);
void enter_norm_layers(LayerMakers& layers);
void enter_sequence_layers(LayerMakers& layers);
void enter_sparse_layers(LayerMakers& layers);
void enter_attention_layers(LayerMakers& layers);
void enter_token_layers(LayerMakers& layers);

}  // namespace fastfed
