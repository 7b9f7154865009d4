// Programs: what is worked out once per model, and a round of clients over the threads.
#include "cpu/program.h"

#include <omp.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <numeric>
#include <set>
#include <stdexcept>

#include "cpu/lanes.h"
#include "cpu/worker.h"

// The math library's own threads, where it is the one that has them: a client has one thread.
extern "C" __attribute__((weak)) int MKL_Set_Num_Threads_Local(int);

namespace fastfed {
namespace {

constexpr Size kLanes = 64;  // enough for a big machine's threads; their number never changes a result

bool is_image(const Shape& shape) { return shape.kind == Kind::kImage; }

// Large images go through their layers one by one, and stay in the cache from layer to layer; small ones with their
// many channels go by the batch, so that weights are read once.
constexpr Size kLargeImage = 100;  // pixels

bool is_by_example(const Spec& spec) {
  const auto is_large = [](const Shape& shape) { return is_image(shape) && shape.rows >= kLargeImage; };
  return is_large(spec.output_shape) || std::any_of(spec.input_shapes.begin(), spec.input_shapes.end(), is_large);
}

// Layers whose backward never looks at their own output: a relu may overwrite it.
bool forgets_output(const std::string& op) {
  static const std::set<std::string> ops = {"linear", "sparse_linear", "conv2d", "group_norm", "layer_norm", "add"};
  return ops.count(op) > 0;
}

}  // namespace

// ---- planning ------------------------------------------------------------------------------------------------------

Program::Program(std::vector<Shape> values, std::vector<Spec> specs, int output, std::string loss, Size d)
    : values_(std::move(values)), output_(output), loss_(std::move(loss)), d_(d) {
  if (values_.empty() || specs.empty()) throw std::invalid_argument("program: is empty");
  plan(specs);
  for (Spec& spec : specs) layers_.push_back(make_layer(std::move(spec)));
  check_params();
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
    if (spec.op == "sparse_linear")
      sparse_range_ = {spec.params.at(0), spec.input_shapes[0].width, spec.output_shape.width};
    if (spec.op == "embedding") vocabulary_ = spec.whole("vocabulary");
  }
  for (Spec& spec : specs)
    for (Size offset : spec.params) spec.shares_params = spec.shares_params || (offset >= 0 && uses[offset] > 1);
  shares_params_ = std::any_of(specs.begin(), specs.end(), [](const Spec& spec) { return spec.shares_params; });
  if (shares_params_)
    for (Spec& spec : specs) spec.shares_params = true;  // the gradient vector is cleared: everybody adds
  plan_gradients(specs);
  plan_memory(specs);
  plan_segments(specs);
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
    if (spec.op != "relu" || maker < 0 || consumers[std::size_t(from)] != 1 || from == output_) continue;
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

void Program::check_params() const {
  for (const auto& layer : layers_) {
    const std::vector<Size> sizes = layer->param_sizes();
    const std::vector<Size>& offsets = layer->spec().params;
    for (std::size_t p = 0; p < offsets.size(); ++p)
      if (offsets[p] >= 0 && (p >= sizes.size() || offsets[p] + sizes[p] > d_))
        throw std::invalid_argument("program: a parameter of '" + layer->spec().op + "' lies outside the vector");
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

std::vector<std::unique_ptr<DeltaSum>> Program::take_sums(bool tracks) {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::vector<std::unique_ptr<DeltaSum>> sums = std::move(idle_sums_);
  idle_sums_.clear();
  if (!sums.empty() && sums.front()->tracks() != tracks) sums.clear();
  return sums;
}

void Program::give_back(std::vector<std::unique_ptr<DeltaSum>> sums) {
  const std::lock_guard<std::mutex> lock(mutex_);
  idle_sums_ = std::move(sums);  // of rounds at the same time, the last one's
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

double total_weight(const Round& round) {
  if (!round.normalise) return 1.0;
  double total = 0;
  for (Size c = 0; c < round.clients; ++c)
    if (steps_taken(round, c) > 0) total += round.weights[c];
  return total > 0 ? total : 1.0;
}

bool is_plain_sgd(const Optimizer& o) {
  const ClientNumbers& n = o.numbers;
  return o.formula == kSgd && o.step_size == kGiven && n.clip == 0 && n.weight_decay == 0 && n.prox == 0;
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

void Program::train(const Examples& examples, const Round& round, const Results& results) {
  const std::vector<Size> order = longest_first(round);
  const Size lanes = std::min(kLanes, round.clients);
  const double total = total_weight(round);
  const bool tracks = sparse_range_.rows > 0 && !round.corrections && !round.measure_cosine && !shares_params_ &&
                      std::all_of(round.optimizers.begin(), round.optimizers.end(), is_plain_sgd);
  LaneTree tree(lanes, d_, sparse_range_, tracks, take_sums(tracks));
  std::atomic<Size> next{0};
  Failure failure;
  Round watched = round;  // all stop when one fails; only the calling thread asks the caller
  watched.interrupted = [&] {
    return failure.happened() || (omp_get_thread_num() == 0 && round.interrupted && round.interrupted());
  };
  const auto work = [&](Worker& worker) {
    worker.prepare(examples, watched, tracks);
    for (Size lane; (lane = next++) < lanes && !failure.happened();) {
      auto sum = tree.take();
      for (Size i = lane; i < round.clients; i += lanes) {
        const Size position = order[std::size_t(i)];
        worker.train(position, round.weights[position] / total, results, *sum);
      }
      tree.finish(lane, std::move(sum));
    }
  };
  const int threads = int(std::min<Size>(round.threads, lanes));
#pragma omp parallel num_threads(threads)
  {
    const int before = MKL_Set_Num_Threads_Local ? MKL_Set_Num_Threads_Local(1) : 0;
    std::unique_ptr<Worker> worker;
    try {
      worker = take_worker(round.batch_size);
      work(*worker);
    } catch (...) {
      failure.note(std::current_exception(), worker ? where(round, *worker) : "");
    }
    if (worker) give_back(std::move(worker));
    if (MKL_Set_Num_Threads_Local) MKL_Set_Num_Threads_Local(before);
  }
  failure.raise();
  double counted = 0;
  for (Size c = 0; c < round.clients; ++c)
    if (steps_taken(round, c) > 0 && !results.refused[c]) counted += round.weights[c];
  const bool rescale = round.normalise && counted > 0 && counted != total;
  std::vector<std::unique_ptr<DeltaSum>> spare = tree.spare();
  spare.push_back(tree.total());
  spare.back()->write(float(rescale ? total / counted : 1.0), results.delta);
  give_back(std::move(spare));
}

}  // namespace fastfed
