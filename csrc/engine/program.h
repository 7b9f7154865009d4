// A client's whole local training, many clients at once: no Python inside, nothing stored per client. A client is one
// thread's work, but for large models of few clients.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "engine/gram.h"
#include "engine/laps.h"
#include "engine/layers/layer.h"
#include "engine/layers/losses.h"
#include "kernels/aligned.h"
#include "kernels/client_step.h"

namespace fastfed {

// ---- data ----------------------------------------------------------------------------------------------------------

enum class InputKind { kFloats, kBytes, kTokens, kSparse };
enum class TargetKind { kLabels, kFloats, kSparse };

// How images are changed when they are read (fastfed/data/augment.py); the program's input is what is seen of them.
struct Augment {
  Size height = 0, width = 0;  // of the stored images; 0: they are read as they are
  bool flip = false, standardise = false;
  bool asked() const { return height > 0; }
};

// The example store as the caller holds it; never copied.
struct Examples {
  Size count;
  InputKind input_kind;
  const void* inputs;              // floats, bytes or int64 tokens: (count, ...) in torch's order
  SparseRows sparse_inputs;        // where kSparse
  std::vector<float> byte_values;  // where kBytes: (channels, 256), the number that a byte stands for
  Augment augment;                 // where kBytes
  TargetKind target_kind;
  const void* targets;  // int64 labels or floats
  Size target_size;     // numbers per example
  SparseRows sparse_targets;
};

// ---- work ----------------------------------------------------------------------------------------------------------

// One client optimizer. The vectors are its state at the start of a round, copied for every client; null where the rule
// has none.
struct Optimizer {
  DirectionFormula formula;
  CoverForm cover;
  StepSizeRule step_size;
  ClientNumbers numbers;
  const float *m, *v, *nu, *mu;
  CoverLayout layout;
  bool keeps_gradient;  // delta_sgd with its own previous gradient
  bool same_batch;      // delta_sgd that evaluates it again
  bool counts_epochs;   // the delay counts epochs
  Size warmup;          // local steps
  bool from_first;      // whether the first of them moves already
};

// Whether a step is x -= lr * gradient and nothing else.
inline bool is_plain_sgd(const Optimizer& o) {
  const ClientNumbers& n = o.numbers;
  return o.formula == kDirectionSgd && o.step_size == kGiven && n.clip == 0 && n.weight_decay == 0 && n.prox == 0;
}

// MOON's contrast (fastfed/train/contrast.py): what goes into the program's last layer is compared with what goes into
// it under the start model and under the client's previous one. mu 0: none.
struct Contrast {
  double mu, temperature;
  const float* previous;  // (n, d), in the engine's order
  const Size* row;        // by client: which one is its own; -1: it has none
};

// One round (fastfed/train/work.py: RoundWork). Arrays of one entry per client; null where the work does without.
struct Round {
  Size clients, batch_size;
  const Size *rows, *offsets, *ids, *steps, *seen;
  Size models;
  const float* start;  // (models, d); the weights of sparse layers as torch has them, (out, in)
  const Size* start_index;
  std::vector<Optimizer> optimizers;
  const Size* optimizer_index;
  const double* lr;
  const float* corrections;  // (clients, d)
  const float* statistics;   // what batch norms' running ones start from: (s,), or (clients, s) where `own_statistics`
  bool own_statistics;
  const Size* own_places;  // (own_count,): numbers of the model that stay with the clients, no part of the sum
  Size own_count;
  Contrast contrast;
  StreamKey shuffle, augment, draw;
  bool drawn;  // examples are drawn one by one, with replacement; `seen` says how many
  std::vector<StreamKey> dropout;
  Word round;
  const double* weights;  // what each client's delta is multiplied by
  double clip;            // 0: none
  bool divide_by_steps, measure_cosine, cosine_includes_step;
  GramUse gram;
  int threads;
  Size first_lane, end_lane;          // of the lanes that are trained here; end_lane 0: all
  std::function<bool()> interrupted;  // asked by the calling thread, between batches

  // What the program adds.
  std::vector<bool> start_is_moderate;  // by model: no difference of two of its numbers can be infinite
  bool tracks;                          // clients move few rows of the program's table, and nobody touches the others
  RoundSeconds* seconds;                // null: nobody asks
};

// The local steps that a client really takes: none without examples, no more than there are batches.
inline Size steps_taken(const Round& round, Size client) {
  if (round.offsets[client + 1] == round.offsets[client]) return 0;
  if (!round.seen) return round.steps[client];
  const Size batches = (round.seen[client] + round.batch_size - 1) / round.batch_size;
  return batches < round.steps[client] ? batches : round.steps[client];
}

// What a round tells of every client, under the names of fastfed/train/work.py: SCALARS.
#define FF_SCALARS(DO) \
  DO(examples)         \
  DO(steps)            \
  DO(first_loss)       \
  DO(last_loss)        \
  DO(mean_loss)        \
  DO(delta_norm)       \
  DO(step_size)        \
  DO(grown_steps)      \
  DO(measured_steps)   \
  DO(min_cosine)

// What a round leaves; `deltas` (clients, d) may be null. The weights of sparse layers lie in `delta` as in
// Round::start, in `deltas` as in the engine, (in, out). Of some lanes, `delta` (roots, d) has the sums that only those
// who have the others can fold, and nothing is said of clients in other lanes.
struct Results {
  float *delta, *deltas;
  Size roots;
  float *statistics, *own;  // (clients, s), (clients, own_count); null where the work does without
#define FF_FIELD(name) double* name;
  FF_SCALARS(FF_FIELD)
#undef FF_FIELD
  bool* refused;
  double* seconds;  // of its threads (RoundSeconds), added to what is there; null: nobody asks
};

// What the model `params` (d,) with these running statistics gives for some examples, with dropout off: outputs (count,
// size of the output). Sparse layers' weights lie as in Round::start.
struct Prediction {
  const float *params, *statistics;
  const Size* rows;
  Size count;
  float* outputs;
  int threads;
  std::function<bool()> interrupted;
};

struct Interrupted : std::exception {};

// ---- program -------------------------------------------------------------------------------------------------------

class DeltaSum;
using DeltaSums = std::vector<std::unique_ptr<DeltaSum>>;
class Worker;

// The weight of a sparse layer in the packed vector: a row (channels,) for every column of the input.
struct SparseWeight {
  Size offset = 0, rows = 0, channels = 0;
  Size end() const { return offset + rows * channels; }
};

class Program {
 public:
  // `d`: the length of the packed vector, `statistics`: of the one of batch norms' running statistics; `loss`: of the
  // value `output`; `constants`: what layers read and nobody
  // trains.
  Program(std::vector<Shape> values, std::vector<Spec> specs, int output, Loss loss, Reduction reduction, Size d,
          Size statistics, AlignedArray<float> constants, Size constants_size);
  ~Program();

  void train(const Examples& examples, Round round, const Results& results);
  // In how many lanes a round is summed; `order` (clients,): positions, of which the i-th is in lane i modulo that
  // number. `corrected`: whether it has corrections, which it need not bring yet.
  Size deal(const Round& round, bool corrected, Size* order) const;
  void predict(const Examples& examples, const Prediction& wanted);

  // A run of layers that are called together: for one example after the other, or for the whole batch.
  struct Segment {
    std::size_t begin, end;
    bool by_example;
  };
  const std::vector<Shape>& values() const { return values_; }
  const std::vector<std::unique_ptr<Layer>>& layers() const { return layers_; }
  const std::vector<Segment>& segments() const { return segments_; }
  const std::vector<int>& memory_of() const { return memory_of_; }
  const std::vector<bool>& per_example() const { return per_example_; }
  const std::vector<bool>& active() const { return active_; }
  const SparseWeight& table() const { return table_; }
  const std::vector<SparseWeight>& tables() const { return tables_; }
  int table_output() const { return table_output_; }
  const FirstLayer& first_layer() const { return first_layer_; }
  GramStore& grams() const { return *grams_; }
  Loss loss() const { return loss_; }
  Reduction reduction() const { return reduction_; }
  int output() const { return output_; }
  // The value that goes into the last layer, and whether anything that is trained comes before it.
  int features() const { return layers_.back()->spec().inputs.front(); }
  bool has_features() const { return layers_.back()->spec().wanted.front(); }
  Size d() const { return d_; }
  Size statistics() const { return statistics_; }
  const float* constants() const { return constants_.data(); }
  Size vocabulary() const { return vocabulary_; }
  bool shares_params() const { return shares_params_; }
  // Whether a batch is worth several threads.
  bool is_large() const { return is_large_; }

 private:
  void plan(std::vector<Spec>& specs);
  void note_table(Spec& spec);
  void plan_gradients(std::vector<Spec>& specs);
  void plan_memory(std::vector<Spec>& specs);
  void plan_segments(const std::vector<Spec>& specs);
  void find_first_layer(const std::vector<Spec>& specs);
  void check_params() const;
  bool tracks(const Round& round, bool corrected) const;
  std::unique_ptr<Worker> take_worker(Size batch);
  void give_back(std::unique_ptr<Worker> worker);
  void train_in_engine_order(const Examples& examples, Round& round, const Results& results);
  void predict_in_engine_order(const Examples& examples, const Prediction& wanted);
  using Failed = std::function<void(std::exception_ptr, const Worker*)>;
  void with_workers(int threads, Size batch, const std::function<void(Worker&)>& work, const Failed& failed);
  DeltaSums take_sums(bool tracks);
  void give_back(DeltaSums sums);
  AlignedArray<float> take_start(Size models);
  void give_back(AlignedArray<float> start, Size models);

  std::vector<Shape> values_;
  int output_;
  Loss loss_;
  Reduction reduction_;
  Size d_, statistics_, constants_size_;
  AlignedArray<float> constants_;
  std::vector<std::unique_ptr<Layer>> layers_;
  std::vector<Segment> segments_;
  std::vector<int> memory_of_;        // by value: whose memory it has (in-place layers)
  std::vector<bool> per_example_;     // by value: its gradient lives for one example only
  std::vector<bool> active_;          // by layer: whether a gradient reaches it
  std::vector<SparseWeight> tables_;  // of all sparse layers, by offset
  SparseWeight table_;                // the one whose moved rows can be tracked, if there is one
  int table_output_ = 0;              // the value that its layer makes
  FirstLayer first_layer_;            // the one that has a Gram form, if there is one
  std::unique_ptr<GramStore> grams_;  // of what goes into it
  Size vocabulary_ = 0;               // of the input's tokens
  bool shares_params_ = false, is_large_ = false;

  std::mutex mutex_;
  // Kept from round to round: fresh memory costs a fault per page.
  std::vector<std::unique_ptr<Worker>> idle_;
  DeltaSums idle_sums_;
  AlignedArray<float> idle_start_;
  Size idle_start_models_ = 0;
};

}  // namespace fastfed
