// The binding of the native engine: fastfed/train/native.py is its only caller.
#include "bind/module.h"

#include <pybind11/stl.h>

#include <chrono>

#include "bind/arrays.h"
#include "bind/numbers.h"
#include "engine/program.h"
#include "simd/loops.h"

namespace fastfed {
namespace {

using Strings = std::map<std::string, double>;
using ValueTuple = std::tuple<std::string, Size, Size, Size, Size>;
using LayerTuple = std::tuple<std::string, std::vector<int>, int, std::vector<Size>, Strings>;

Kind kind_of(const std::string& name) {
  static const std::map<std::string, Kind> kinds = {{"vector", Kind::kVector},
                                                    {"sequence", Kind::kSequence},
                                                    {"image", Kind::kImage},
                                                    {"tokens", Kind::kTokens},
                                                    {"sparse", Kind::kSparse}};
  const auto found = kinds.find(name);
  FF_REQUIRE(found != kinds.end(), "values", "of a known kind, not '" + name + "'");
  return found->second;
}

Loss loss_of(const std::string& name) {
  static const std::map<std::string, Loss> losses = {
      {"cross_entropy", Loss::kCrossEntropy}, {"binary_cross_entropy", Loss::kBinaryCrossEntropy}, {"mse", Loss::kMse}};
  const auto found = losses.find(name);
  FF_REQUIRE(found != losses.end(), "loss", "a known one, not '" + name + "'");
  return found->second;
}

Reduction reduction_of(const std::string& name) {
  static const std::map<std::string, Reduction> reductions = {
      {"mean", Reduction::kMean}, {"outputs", Reduction::kOutputs}, {"batch", Reduction::kBatch}};
  const auto found = reductions.find(name);
  FF_REQUIRE(found != reductions.end(), "reduction", "a known one, not '" + name + "'");
  return found->second;
}

std::unique_ptr<Program> make_program(const std::vector<ValueTuple>& values, const std::vector<LayerTuple>& layers,
                                      int output, const std::string& loss, const std::string& reduction, Size d,
                                      Size statistics, const py::object& constants) {
  std::vector<Shape> shapes;
  for (const auto& [kind, rows, channels, height, width] : values)
    shapes.push_back({kind_of(kind), rows, channels, height, width});
  std::vector<Spec> specs;
  for (const auto& [op, inputs, out, params, settings] : layers) {
    Spec spec;
    spec.op = op_of(op);
    spec.inputs = inputs;
    spec.output = out;
    spec.params = params;
    spec.settings = settings;
    specs.push_back(std::move(spec));
  }
  FF_REQUIRE(output > 0 && output < int(shapes.size()), "output", "the number of a value");
  const Size size = array(constants, "constants").numel;
  AlignedArray<float> held(size);
  copy(size, data<const float>(constants, "constants", size), held.data());
  return std::make_unique<Program>(std::move(shapes), std::move(specs), output, loss_of(loss), reduction_of(reduction),
                                   d, statistics, std::move(held), size);
}

// ---- examples ------------------------------------------------------------------------------------------------------

SparseRows sparse_rows(const py::dict& rows, Size count, Size width, const char* name) {
  FF_REQUIRE(rows["width"].cast<Size>() == width, name, std::to_string(width) + " columns wide");
  const Size entries = array(rows["columns"], name).numel;
  return {data<const Size>(rows["starts"], name, count + 1), data<const std::int32_t>(rows["columns"], name, entries),
          data<const float>(rows["values"], name, entries)};
}

// The numbers of a stored image, of which the program's input may be a part.
Size read_augment(const py::dict& given, const Shape& input, Augment& augment) {
  if (given["augment"].is_none()) return input.size();
  const py::dict asked = given["augment"];
  augment = {asked["height"].cast<Size>(), asked["width"].cast<Size>(), asked["flip"].cast<bool>(),
             asked["standardise"].cast<bool>()};
  FF_REQUIRE(input.kind == Kind::kImage, "augment", "for images");
  FF_REQUIRE(augment.height >= input.height && augment.width >= input.width && input.height > 0, "augment",
             "of images that are at least as large as the program's input");
  return input.channels * augment.height * augment.width;
}

Examples examples_of(const py::dict& given, const Program& program) {
  Examples e{};
  const Shape& input = program.values().front();
  e.count = given["count"].cast<Size>();
  const py::object inputs = given["inputs"], targets = given["targets"];
  if (input.kind == Kind::kSparse) {
    e.input_kind = InputKind::kSparse;
    e.sparse_inputs = sparse_rows(inputs, e.count, input.channels, "inputs");
  } else if (input.kind == Kind::kTokens) {
    e.input_kind = InputKind::kTokens;
    e.inputs = data<const Size>(inputs, "inputs", e.count * input.rows);
  } else if (array(inputs, "inputs").dtype == Dtype::kByte) {
    e.input_kind = InputKind::kBytes;
    e.inputs = data<const std::uint8_t>(inputs, "inputs", e.count * read_augment(given, input, e.augment));
    const Size channels = input.kind == Kind::kImage ? input.channels : 1;
    const float* values = data<const float>(given["byte_values"], "byte_values", channels * 256);
    e.byte_values.assign(values, values + channels * 256);
  } else {
    e.input_kind = InputKind::kFloats;
    e.inputs = data<const float>(inputs, "inputs", e.count * input.size());
  }
  const Shape& output = program.values()[std::size_t(program.output())];
  if (program.loss() == Loss::kCrossEntropy) {
    e.target_kind = TargetKind::kLabels;
    e.target_size = output.rows;
    e.targets = data<const Size>(targets, "targets", e.count * e.target_size);
  } else if (py::isinstance<py::dict>(targets)) {
    e.target_kind = TargetKind::kSparse;
    e.sparse_targets = sparse_rows(targets, e.count, output.size(), "targets");
  } else {
    e.target_kind = TargetKind::kFloats;
    e.target_size = output.size();
    e.targets = data<const float>(targets, "targets", e.count * e.target_size);
  }
  return e;
}

// ---- work ----------------------------------------------------------------------------------------------------------

Optimizer optimizer_of(const py::dict& given, Size d) {
  Optimizer o{};
  const int formula = given["formula"].cast<int>();
  FF_REQUIRE(formula >= 0 && formula < kDirections, "formula", "a DirectionFormula");
  o.formula = DirectionFormula(formula);
  const int cover = given["cover"].cast<int>(), step_size = given["step_size"].cast<int>();
  FF_REQUIRE(cover >= 0 && cover < kCovers, "cover", "a CoverForm");
  FF_REQUIRE(step_size >= 0 && step_size < kStepSizes, "step_size", "a StepSizeRule");
  o.cover = CoverForm(cover);
  o.step_size = StepSizeRule(step_size);
  o.numbers = client_numbers(given["numbers"]);
  const py::dict state = given["state"];
  const auto vector = [&](const char* name) -> const float* {
    return state.contains(name) ? data<const float>(state[name], name, d) : nullptr;
  };
  o.m = vector("m");
  o.v = vector("v");
  o.nu = vector("nu");
  o.keeps_gradient = state.contains("grad_prev");
  if (state.contains("mu")) {
    const Array layout = array(state["cover"], "cover");
    o.layout = read_layout(data<const Size>(state["cover"], "cover", layout.numel), layout.numel, d);
    o.mu = data<const float>(state["mu"], "mu", o.layout.mu_size);
  }
  o.same_batch = given["same_batch"].cast<bool>();
  o.counts_epochs = given["counts_epochs"].cast<bool>();
  o.warmup = given["warmup"].cast<Size>();
  o.from_first = given["from_first"].cast<bool>();
  FF_REQUIRE(!kDirectionTraits[formula].has_v || o.mu || o.v, "state", "complete");
  FF_REQUIRE(!kDirectionTraits[formula].has_m || o.m, "state", "complete");
  return o;
}

StreamKey key_of(const py::tuple& key) { return {key[0].cast<Word>(), key[1].cast<Word>()}; }

void require_within(const Size* numbers, Size count, Size limit, const char* name) {
  for (Size i = 0; numbers && i < count; ++i)
    FF_REQUIRE(numbers[i] >= 0 && numbers[i] < limit, name, "below " + std::to_string(limit));
}

Contrast contrast_of(const py::object& given, Size clients, const Program& program) {
  if (given.is_none()) return {};
  FF_REQUIRE(program.has_features(), "contrast", "of a program that trains something before its last layer");
  const py::dict parts = given;
  Contrast c{};
  c.mu = parts["mu"].cast<double>();
  c.temperature = parts["temperature"].cast<double>();
  FF_REQUIRE(c.mu > 0 && c.temperature > 0, "contrast", "of positive weight and temperature");
  const Size models = array(parts["previous"], "previous").numel / program.d();
  c.previous = data<const float>(parts["previous"], "previous", models * program.d());
  c.row = data<const Size>(parts["row"], "row", clients);
  for (Size i = 0; i < clients; ++i)
    FF_REQUIRE(c.row[i] >= -1 && c.row[i] < models, "row", "-1 or below " + std::to_string(models));
  return c;
}

// The statistics that all clients start from, or those of each.
void read_statistics(const py::object& given, Size size, Round& round) {
  FF_REQUIRE(size == 0 || !given.is_none(), "statistics", "given for a program with batch norms");
  if (size == 0) return;
  round.own_statistics = array(given, "statistics").dim == 2;
  round.statistics = data<const float>(given, "statistics", round.own_statistics ? round.clients * size : size);
}

GramUse gram_use_of(const py::object& asked) {
  if (asked.is_none()) return GramUse::kWhereItPays;
  return asked.cast<bool>() ? GramUse::kAlways : GramUse::kNever;
}

Round round_of(const py::dict& given, const Program& program) {
  const Size d = program.d();
  Round r{};
  r.clients = array(given["ids"], "ids").numel;
  r.batch_size = given["batch_size"].cast<Size>();
  FF_REQUIRE(r.clients > 0 && r.batch_size > 0, "ids", "given, with batch_size > 0");
  r.ids = data<const Size>(given["ids"], "ids", r.clients);
  r.offsets = data<const Size>(given["offsets"], "offsets", r.clients + 1);
  FF_REQUIRE(r.offsets[0] == 0, "offsets", "rising from 0");
  for (Size c = 0; c < r.clients; ++c) FF_REQUIRE(r.offsets[c] <= r.offsets[c + 1], "offsets", "rising from 0");
  r.rows = data<const Size>(given["rows"], "rows", r.offsets[r.clients]);
  r.steps = data<const Size>(given["steps"], "steps", r.clients);
  r.seen = data_or_null<const Size>(given["seen"], "seen", r.clients);
  r.models = array(given["start"], "start").numel / d;
  r.start = data<const float>(given["start"], "start", r.models * d);
  r.start_index = data_or_null<const Size>(given["start_index"], "start_index", r.clients);
  require_within(r.start_index, r.clients, r.models, "start_index");
  for (py::handle optimizer : given["optimizers"].cast<py::list>())
    r.optimizers.push_back(optimizer_of(optimizer.cast<py::dict>(), d));
  r.optimizer_index = data_or_null<const Size>(given["optimizer_index"], "optimizer_index", r.clients);
  require_within(r.optimizer_index, r.clients, Size(r.optimizers.size()), "optimizer_index");
  FF_REQUIRE(!r.optimizers.empty(), "optimizers", "given");
  r.lr = data_or_null<const double>(given["lr"], "lr", r.clients);
  r.corrections = data_or_null<const float>(given["corrections"], "corrections", r.clients * d);
  read_statistics(given["statistics"], program.statistics(), r);
  r.own_count = given["own"].is_none() ? 0 : array(given["own"], "own").numel;
  r.own_places = data_or_null<const Size>(given["own"], "own", r.own_count);
  require_within(r.own_places, r.own_count, d, "own");
  r.contrast = contrast_of(given["contrast"], r.clients, program);
  r.shuffle = key_of(given["shuffle"]);
  r.augment = key_of(given["augment"]);
  r.draw = key_of(given["draw"]);
  r.drawn = given["drawn"].cast<bool>();
  FF_REQUIRE(!r.drawn || r.seen, "seen", "given where examples are drawn");
  for (py::handle key : given["dropout"].cast<py::list>()) r.dropout.push_back(key_of(key.cast<py::tuple>()));
  r.round = given["round"].cast<Word>();
  r.weights = data<const double>(given["weights"], "weights", r.clients);
  r.clip = given["clip"].cast<double>();
  r.divide_by_steps = given["divide_by_steps"].cast<bool>();
  r.measure_cosine = given["measure_cosine"].cast<bool>();
  r.cosine_includes_step = given["cosine_includes_step"].cast<bool>();
  r.gram = gram_use_of(given["gram"]);
  r.threads = given["threads"].is_none() ? threads() : given["threads"].cast<int>();
  FF_REQUIRE(r.threads >= 1, "threads", "at least 1");
  const py::tuple lanes = given["lanes"];
  r.first_lane = lanes[0].cast<Size>();
  r.end_lane = lanes[1].cast<Size>();
  return r;
}

Results results_of(const py::dict& given, const Round& round, const Program& program) {
  const Size clients = round.clients, d = program.d();
  Results r{};
  r.roots = array(given["delta"], "delta").numel / d;
  FF_REQUIRE(r.roots == 1 || round.end_lane > 0, "delta", "one vector, unless some lanes are asked for");
  r.delta = data<float>(given["delta"], "delta", r.roots * d);
  r.deltas = data_or_null<float>(given["deltas"], "deltas", clients * d);
  r.statistics = data_or_null<float>(given["statistics"], "statistics", clients * program.statistics());
  r.own = data_or_null<float>(given["own"], "own", clients * round.own_count);
#define FF_TAKE(name) r.name = data<double>(given[#name], #name, clients);
  FF_SCALARS(FF_TAKE)
#undef FF_TAKE
  r.refused = data<bool>(given["refused"], "refused", clients);
  r.seconds = data_or_null<double>(given["seconds"], "seconds", Size(RoundSeconds::size(program.layers().size())));
  return r;
}

// Asks Python now and then whether Ctrl-C was pressed; more often would cost more than small batches do.
class SignalWatch {
 public:
  bool operator()() {
    const auto now = std::chrono::steady_clock::now();
    if (now - last_ < std::chrono::milliseconds(20)) return false;
    last_ = now;
    const py::gil_scoped_acquire acquire;
    return PyErr_CheckSignals() != 0;
  }

 private:
  std::chrono::steady_clock::time_point last_ = std::chrono::steady_clock::now();
};

void train(Program& program, const py::dict& examples, const py::dict& work, const py::dict& results) {
  const Examples store = examples_of(examples, program);
  Round round = round_of(work, program);
  round.interrupted = SignalWatch();
  const Results out = results_of(results, round, program);
  try {
    const py::gil_scoped_release release;
    program.train(store, std::move(round), out);
  } catch (const Interrupted&) {
    throw py::error_already_set();  // what the signal's handler raised
  }
}

Size deal(const Program& program, const py::dict& work, bool corrected, const py::object& order) {
  const Round round = round_of(work, program);
  return program.deal(round, corrected, data<Size>(order, "order", round.clients));
}

void predict(Program& program, const py::dict& examples, const py::object& params, const py::object& statistics,
             const py::object& rows, const py::object& outputs, int asked) {
  const Examples store = examples_of(examples, program);
  Prediction wanted{};
  wanted.count = array(rows, "rows").numel;
  wanted.rows = data<const Size>(rows, "rows", wanted.count);
  wanted.params = data<const float>(params, "params", program.d());
  FF_REQUIRE(program.statistics() == 0 || !statistics.is_none(), "statistics", "given for a program with batch norms");
  wanted.statistics = data_or_null<const float>(statistics, "statistics", program.statistics());
  wanted.outputs =
      data<float>(outputs, "outputs", wanted.count * program.values()[std::size_t(program.output())].size());
  wanted.threads = asked > 0 ? asked : threads();
  wanted.interrupted = SignalWatch();
  try {
    const py::gil_scoped_release release;
    program.predict(store, wanted);
  } catch (const Interrupted&) {
    throw py::error_already_set();
  }
}

// By layer, in the program's order.
std::vector<std::string> ways(const Program& program) {
  std::vector<std::string> found;
  for (const auto& layer : program.layers()) found.emplace_back(layer->way());
  return found;
}

}  // namespace

void bind_program(py::module_& module) {
#define FF_NAME(name) #name,
  module.def("scalars", [] { return std::vector<std::string>{FF_SCALARS(FF_NAME)}; });
  module.def("duties", [] { return std::vector<std::string>{FF_DUTIES(FF_NAME)}; });
#undef FF_NAME
  py::class_<Program>(module, "Program")
      .def(py::init(&make_program))
      .def("train", &train)
      .def("deal", &deal)
      .def("predict", &predict)
      .def("ways", &ways);
}

}  // namespace fastfed
