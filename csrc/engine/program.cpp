// Programs: what is worked out once per model, and a round of clients over the threads.
#include "engine/program.h"

#include <omp.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <numeric>
#include <optional>
#include <stdexcept>

#include "engine/lanes.h"
#include "engine/tables.h"
#include "engine/worker.h"
#include "kernels/parallel.h"
#include "simd/library.h"
#include "simd/loops.h"

namespace fastfed {
namespace {

// Enough for a big machine's threads. How many there are is a matter of the cohort and the model, never of the threads.
constexpr Size kLanes = 64;
// Where clients touch a few rows only, to fold two lanes costs as much as several clients: a lane gets that many.
constexpr Size kClientsOfSparseLane = 8, kSparseRoots = 8;

Size lanes_of(Size clients, bool tracks) {
  const Size lanes = tracks ? std::clamp(clients / kClientsOfSparseLane, kSparseRoots, kLanes) : kLanes;
  return std::min(lanes, clients);
}

bool is_image(const Shape& shape) { return shape.kind == Kind::kImage; }

// Large images go through their layers one by one, and stay in the cache from layer to layer; small ones with their
// many channels go by the batch, so that weights are read once. A batch norm looks at all examples at once.
constexpr Size kLargeImage = 100;  // pixels

bool is_by_example(const Spec& spec) {
  if (spec.op == Op::kBatchNorm) return false;
  const auto is_large = [](const Shape& shape) { return is_image(shape) && shape.rows >= kLargeImage; };
  return is_large(spec.output_shape) || std::any_of(spec.input_shapes.begin(), spec.input_shapes.end(), is_large);
}

// Multiplications of an example from which on threads that share a batch save more than they wait for each other.
constexpr double kManyProducts = 4e6;

// Layers whose backward never looks at their own output: a relu may overwrite it.
bool forgets_output(Op op) {
  return op == Op::kLinear || op == Op::kSparseLinear || op == Op::kConv2d || op == Op::kGroupNorm ||
         op == Op::kBatchNorm || op == Op::kLayerNorm || op == Op::kAdd || op == Op::kAddParameter;
}

}  // namespace

// ---- planning ------------------------------------------------------------------------------------------------------

Program::Program(std::vector<Shape> values, std::vector<Spec> specs, int output, Loss loss, Reduction reduction, Size d,
                 Size statistics, AlignedArray<float> constants, Size constants_size)
    : values_(std::move(values)),
      output_(output),
      loss_(loss),
      reduction_(reduction),
      d_(d),
      statistics_(statistics),
      constants_size_(constants_size),
      constants_(std::move(constants)) {
  if (values_.empty() || specs.empty()) throw std::invalid_argument("program: is empty");
  plan(specs);
  for (Spec& spec : specs) layers_.push_back(make_layer(std::move(spec)));
  check_params();
  const double products = std::accumulate(layers_.begin(), layers_.end(), 0.0,
                                          [](double sum, const auto& layer) { return sum + layer->multiplications(); });
  is_large_ = products >= kManyProducts;
}

Program::~Program() = default;

void Program::plan(std::vector<Spec>& specs) {
  const int count = int(values_.size());
  std::map<Size, int> uses;
  for (std::size_t l = 0; l < specs.size(); ++l) {
    Spec& spec = specs[l];
    spec.place = int(l);
    for (int value : spec.inputs) {
      if (value < 0 || value >= count) throw std::invalid_argument("program: names a value that is not there");
      spec.input_shapes.push_back(values_[std::size_t(value)]);
    }
    if (spec.output <= 0 || spec.output >= count || spec.inputs.empty())
      throw std::invalid_argument("program: a layer needs an input and an output of its own");
    spec.output_shape = values_[std::size_t(spec.output)];
    spec.by_example = is_by_example(spec);
    for (Size offset : spec.params)
      if (offset >= 0) ++uses[offset];
    if (spec.op == Op::kSparseLinear && !is_constant(spec.params.at(0))) note_table(spec);
    if (spec.op == Op::kEmbedding) vocabulary_ = spec.whole("vocabulary");
  }
  for (Spec& spec : specs)
    for (Size offset : spec.params) spec.shares_params = spec.shares_params || (offset >= 0 && uses[offset] > 1);
  shares_params_ = std::any_of(specs.begin(), specs.end(), [](const Spec& spec) { return spec.shares_params; });
  if (shares_params_)
    for (Spec& spec : specs) spec.shares_params = true;  // the gradient vector is cleared: everybody adds
  plan_gradients(specs);
  plan_memory(specs);
  plan_segments(specs);
  find_first_layer(specs);
  grams_ = std::make_unique<GramStore>(first_layer_.in);
}

void Program::note_table(Spec& spec) {
  const SparseWeight table{spec.params.at(0), spec.input_shapes[0].channels, spec.output_shape.channels};
  const auto place = std::lower_bound(tables_.begin(), tables_.end(), table,
                                      [](const SparseWeight& a, const SparseWeight& b) { return a.offset < b.offset; });
  if (place != tables_.end() && place->offset == table.offset) return;  // shared
  tables_.insert(place, table);
  if (tables_.size() > 1) return;
  spec.tracked = true;
  table_ = table;
  table_output_ = spec.output;
}

// Which gradients are wanted, and who comes second to one, in the order of the backward pass.
void Program::plan_gradients(std::vector<Spec>& specs) {
  std::vector<bool> depends(values_.size(), false), written(values_.size(), false);
  for (const Spec& spec : specs) {
    bool does = std::any_of(spec.params.begin(), spec.params.end(), [](Size offset) { return offset >= 0; });
    for (int value : spec.inputs) does = does || depends[std::size_t(value)];
    depends[std::size_t(spec.output)] = does;
  }
  written[std::size_t(output_)] = true;
  active_.assign(specs.size(), false);
  for (std::size_t l = specs.size(); l-- > 0;) {
    Spec& spec = specs[l];
    active_[l] = written[std::size_t(spec.output)] && depends[std::size_t(spec.output)];
    for (int value : spec.inputs) {
      const bool wanted = active_[l] && depends[std::size_t(value)];
      spec.wanted.push_back(wanted);
      spec.add_to.push_back(wanted && written[std::size_t(value)]);
      if (wanted) written[std::size_t(value)] = true;
    }
  }
}

// Which values share memory, and whose gradients live for one example only.
void Program::plan_memory(std::vector<Spec>& specs) {
  std::vector<int> consumers(values_.size(), 0), producer(values_.size(), -1);
  for (std::size_t l = 0; l < specs.size(); ++l) {
    for (int value : specs[l].inputs) ++consumers[std::size_t(value)];
    producer[std::size_t(specs[l].output)] = int(l);
  }
  memory_of_.resize(values_.size());
  std::iota(memory_of_.begin(), memory_of_.end(), 0);
  for (Spec& spec : specs) {
    const int from = spec.inputs[0], maker = producer[std::size_t(from)];
    if (spec.op != Op::kRelu || maker < 0 || consumers[std::size_t(from)] != 1 || from == output_) continue;
    if (!forgets_output(specs[std::size_t(maker)].op)) continue;
    spec.in_place = true;
    memory_of_[std::size_t(spec.output)] = memory_of_[std::size_t(from)];
  }
  if (is_image(values_[std::size_t(output_)])) throw std::invalid_argument("program: its output must not be an image");
}

void Program::plan_segments(const std::vector<Spec>& specs) {
  for (std::size_t l = 0; l < specs.size(); ++l) {
    if (segments_.empty() || segments_.back().by_example != specs[l].by_example)
      segments_.push_back({l, l, specs[l].by_example});
    segments_.back().end = l + 1;
  }
  // The gradient of a value lives for one example only if everything that touches it is in one segment by example.
  constexpr int kNobody = -1, kSeveral = -2;
  std::vector<int> segment_of(values_.size(), kNobody);
  for (std::size_t s = 0; s < segments_.size(); ++s)
    for (std::size_t l = segments_[s].begin; l < segments_[s].end; ++l) {
      std::vector<int> touched = specs[l].inputs;
      touched.push_back(specs[l].output);
      for (int value : touched) {
        int& seen = segment_of[std::size_t(memory_of_[std::size_t(value)])];
        seen = seen == kNobody || seen == int(s) ? int(s) : kSeveral;
      }
    }
  per_example_.assign(values_.size(), false);
  for (std::size_t v = 0; v < values_.size(); ++v)
    per_example_[v] = segment_of[v] >= 0 && segments_[std::size_t(segment_of[v])].by_example && int(v) != output_;
}

// From the input on, through layers that only lay it out anew, each the only one that reads what comes before it.
void Program::find_first_layer(const std::vector<Spec>& specs) {
  if (shares_params_ || values_.front().kind == Kind::kTokens || values_.front().kind == Kind::kSparse) return;
  int value = 0;
  for (std::size_t l = 0; l < specs.size(); ++l) {
    const Spec& spec = specs[l];
    const auto reads = [value](const Spec& one) { return std::count(one.inputs.begin(), one.inputs.end(), value); };
    if (std::count_if(specs.begin(), specs.end(), reads) != 1 || reads(spec) != 1) return;
    if (spec.op == Op::kLinear) {
      const Shape &in = values_[std::size_t(value)], &out = spec.output_shape;
      if (in.kind == Kind::kVector && spec.params.at(0) >= 0 && !is_constant(spec.params.at(1)) && active_[l])
        first_layer_ = {int(l), value, spec.output, in.channels, out.channels, spec.params[0], spec.params.at(1)};
      return;
    }
    if (spec.op != Op::kFlatten) return;
    value = spec.output;
  }
}

void Program::check_params() const {
  const auto fits = [this](Size offset, Size size) {
    return is_constant(offset) ? constant_at(offset) + size <= constants_size_ : offset + size <= d_;
  };
  for (const auto& layer : layers_) {
    const std::vector<Size> sizes = layer->param_sizes();
    const std::vector<Size>& offsets = layer->spec().params;
    for (std::size_t p = 0; p < offsets.size(); ++p)
      if (offsets[p] != kAbsent && (p >= sizes.size() || !fits(offsets[p], sizes[p])))
        throw std::invalid_argument(std::string("program: a parameter of '") + name_of(layer->spec().op) +
                                    "' lies outside the vector");
    if (layer->constants_end() > constants_size_)
      throw std::invalid_argument("program: a mask lies outside the constants");
    if (layer->statistics_end() > statistics_)
      throw std::invalid_argument("program: a running statistic lies outside their vector");
  }
}

// ---- workers -------------------------------------------------------------------------------------------------------

std::unique_ptr<Worker> Program::take_worker(Size batch) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    while (!idle_.empty()) {
      auto worker = std::move(idle_.back());
      idle_.pop_back();
      if (worker->batch() >= batch) return worker;
    }
  }
  return std::make_unique<Worker>(*this, batch);
}

void Program::give_back(std::unique_ptr<Worker> worker) {
  const std::lock_guard<std::mutex> lock(mutex_);
  idle_.push_back(std::move(worker));
}

DeltaSums Program::take_sums(bool tracks) {
  const std::lock_guard<std::mutex> lock(mutex_);
  DeltaSums sums = std::move(idle_sums_);
  idle_sums_.clear();
  if (!sums.empty() && sums.front()->tracks() != tracks) sums.clear();
  return sums;
}

void Program::give_back(DeltaSums sums) {
  const std::lock_guard<std::mutex> lock(mutex_);
  idle_sums_ = std::move(sums);  // of rounds at the same time, the last one's
}

AlignedArray<float> Program::take_start(Size models) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (std::exchange(idle_start_models_, 0) == models) return std::move(idle_start_);
  }
  return AlignedArray<float>(models * d_);
}

void Program::give_back(AlignedArray<float> start, Size models) {
  const std::lock_guard<std::mutex> lock(mutex_);
  idle_start_ = std::move(start);
  idle_start_models_ = models;
}

// ---- a round -------------------------------------------------------------------------------------------------------

namespace {

// Positions with the most work first, so that no long client is left for the end.
std::vector<Size> longest_first(const Round& round) {
  std::vector<Size> order(static_cast<std::size_t>(round.clients));
  std::iota(order.begin(), order.end(), Size(0));
  const auto cost = [&](Size c) {
    return steps_taken(round, c) * std::min(round.batch_size, round.offsets[c + 1] - round.offsets[c]);
  };
  std::stable_sort(order.begin(), order.end(), [&](Size a, Size b) { return cost(a) > cost(b); });
  return order;
}

// The lane of a turn, of lanes [begin, end). Threads that begin together have no neighbours, whose sums would both be
// made before they can be folded: a few lanes with even numbers come first, then those between them.
Size lane_of_turn(Size turn, Size workers, Size begin, Size end) {
  const Size first = turn - (turn - begin) % (2 * workers), evens = (std::min(end - first, 2 * workers) + 1) / 2;
  const Size place = turn - first;
  return first + (place < evens ? 2 * place : 2 * (place - evens) + 1);
}

bool is_moderate(Size d, const float* x, int threads) {
  std::atomic<bool> moderate{true};
  for_chunks(d, threads, [&](Size begin, Size n) {
    if (!are_moderate(n, x + begin)) moderate = false;
  });
  return moderate;
}

std::string where(const Round& round, const Worker& worker) {
  const Size position = worker.position();
  return "client " + std::to_string(round.ids[position]) + " (position " + std::to_string(position) + "), local step " +
         std::to_string(worker.local_step() + 1) + ": ";
}

// What went wrong first, and at which client.
class Failure {
 public:
  bool happened() const { return happened_; }

  void note(std::exception_ptr error, const std::string& place) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!happened_.exchange(true)) {
      error_ = std::move(error);
      place_ = place;
    }
  }

  void raise() const {
    if (!happened_) return;
    try {
      std::rethrow_exception(error_);
    } catch (const Interrupted&) {
      throw;
    } catch (const std::exception& error) {
      throw std::runtime_error(place_ + error.what());
    }
  }

 private:
  std::atomic<bool> happened_{false};
  std::mutex mutex_;
  std::exception_ptr error_;
  std::string place_;
};

}  // namespace

bool Program::tracks(const Round& round, bool corrected) const {
  return table_.rows > 0 && !corrected && !round.measure_cosine && !shares_params_ &&
         std::all_of(round.optimizers.begin(), round.optimizers.end(), is_plain_sgd);
}

Size Program::deal(const Round& round, bool corrected, Size* order) const {
  const std::vector<Size> positions = longest_first(round);
  std::copy(positions.begin(), positions.end(), order);
  return lanes_of(round.clients, tracks(round, corrected));
}

void Program::train(const Examples& examples, Round round, const Results& results) {
  std::optional<RoundSeconds> seconds;
  if (results.seconds) round.seconds = &seconds.emplace(layers_.size(), results.seconds);
  round.tracks = tracks(round, round.corrections != nullptr);
  round.start_is_moderate.clear();
  for (Size m = 0; m < round.models; ++m)
    round.start_is_moderate.push_back(is_moderate(d_, round.start + m * d_, round.threads));
  if (tables_.empty()) return train_in_engine_order(examples, round, results);
  AlignedArray<float> start = take_start(round.models);
  for (Size m = 0; m < round.models; ++m)
    to_engine_order(tables_, d_, round.start + m * d_, start.data() + m * d_, round.threads);
  round.start = start.data();
  train_in_engine_order(examples, round, results);
  give_back(std::move(start), round.models);
}

// work(worker) on every thread, each with a worker of its own; what goes wrong is handed to `failed`.
void Program::with_workers(int threads, Size batch, const std::function<void(Worker&)>& work, const Failed& failed) {
  const auto run = [&] {
    const LibraryOnOneThread alone;
    std::unique_ptr<Worker> worker;
    try {
      worker = take_worker(batch);
      work(*worker);
    } catch (...) {
      failed(std::current_exception(), worker.get());
    }
    if (worker) give_back(std::move(worker));
  };
  // Alone without a region, so that those of layers are no inner ones, for which threads would be made every time.
  if (threads == 1) return run();
#pragma omp parallel num_threads(threads)
  run();
}

void Program::train_in_engine_order(const Examples& examples, Round& round, const Results& results) {
  const std::vector<Size> order = longest_first(round);
  const Size lanes = lanes_of(round.clients, round.tracks), end = round.end_lane > 0 ? round.end_lane : lanes;
  if (round.first_lane < 0 || round.first_lane >= end || end > lanes)
    throw std::invalid_argument("lanes: must be some of the round's " + std::to_string(lanes));
  LaneTree tree({lanes, round.first_lane, end}, round.tracks ? kSparseRoots : 1, d_, table_, round.tracks,
                take_sums(round.tracks));
  std::atomic<Size> next{round.first_lane};
  Failure failure;
  // All stop when one fails; only the calling thread asks the caller.
  round.interrupted = [&failure, asks = std::move(round.interrupted)] {
    return failure.happened() || (omp_get_thread_num() == 0 && asks && asks());
  };
  // Large models of few clients: client after client, each by all threads. Some of its work is one thread's, so that
  // half as many clients as threads go as fast side by side.
  const bool shares = is_large_ && 2 * (end - round.first_lane) <= round.threads;
  const int workers = shares ? 1 : int(std::min<Size>(round.threads, end - round.first_lane));
  if (round.seconds) round.seconds->lap(Duty::deal, workers);
  const auto work = [&](Worker& worker) {
    std::optional<Laps> watch;
    if (round.seconds) watch.emplace(*round.seconds);
    Laps* laps = watch ? &*watch : nullptr;
    worker.prepare(examples, round, shares ? round.threads : 1, laps);
    lap(laps, Duty::prepare);
    for (Size turn; (turn = next++) < end && !failure.happened();) {
      const Size number = lane_of_turn(turn, workers, round.first_lane, end);
      Lane lane(tree, number);
      for (Size i = number; i < round.clients; i += lanes) {
        const Size position = order[std::size_t(i)], after = i + lanes;
        const Size following = after < round.clients ? order[std::size_t(after)] : -1;
        worker.train(position, following, round.weights[position], results, lane);
      }
      lane.finish();
      lap(laps, Duty::fold);
    }
  };
  with_workers(workers, round.batch_size, work, [&](std::exception_ptr error, const Worker* worker) {
    failure.note(std::move(error), worker ? where(round, *worker) : "");
  });
  failure.raise();
  if (round.seconds) round.seconds->wait(workers);
  if (end - round.first_lane < lanes && tree.roots() != results.roots)
    throw std::invalid_argument("delta: these lanes have " + std::to_string(tree.roots()) + " roots");
  tree.write(tables_, results.delta, round.threads);
  give_back(tree.spare());
  if (round.seconds) round.seconds->lap(Duty::write, workers);
}

// ---- prediction ----------------------------------------------------------------------------------------------------

void Program::predict(const Examples& examples, const Prediction& wanted) {
  if (tables_.empty()) return predict_in_engine_order(examples, wanted);
  Prediction mine = wanted;
  AlignedArray<float> params = take_start(1);
  to_engine_order(tables_, d_, wanted.params, params.data(), wanted.threads);
  mine.params = params.data();
  predict_in_engine_order(examples, mine);
  give_back(std::move(params), 1);
}

// Batches of a fixed size, so that the bits do not depend on who takes which.
void Program::predict_in_engine_order(const Examples& examples, const Prediction& wanted) {
  constexpr Size kBatch = 32;
  const Size size = values_[std::size_t(output_)].size(), batches = (wanted.count + kBatch - 1) / kBatch;
  std::atomic<Size> next{0};
  Failure failure;
  const auto work = [&](Worker& worker) {
    worker.prepare(examples, wanted.params, wanted.statistics);
    for (Size batch; (batch = next++) < batches && !failure.happened();) {
      if (omp_get_thread_num() == 0 && wanted.interrupted && wanted.interrupted()) throw Interrupted();
      const Size begin = batch * kBatch, count = std::min(kBatch, wanted.count - begin);
      worker.predict(wanted.rows + begin, count, wanted.outputs + begin * size);
    }
  };
  with_workers(int(std::clamp<Size>(batches, 1, wanted.threads)), kBatch, work,
               [&](std::exception_ptr error, const Worker*) { failure.note(std::move(error), ""); });
  failure.raise();
}

}  // namespace fastfed
