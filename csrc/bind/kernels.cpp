// The bindings of the kernels; program.cpp has the engine's, and no other file knows Python. kernels/check.py has
// refused bad arguments with words for users; here stands only what memory safety needs, so that no call of this
// private module can read or write out of bounds. The GIL is released while a kernel runs.
#include <ATen/Parallel.h>
#include <pybind11/stl.h>

#include "bind/numbers.h"
#include "bind/program.h"
#include "bind/tensors.h"
#include "kernels/client_step.h"
#include "kernels/norms.h"
#include "kernels/probe.h"
#include "kernels/random.h"
#include "kernels/server_step.h"
#include "kernels/trimmed_mean.h"
#include "simd/simd.h"

using namespace fastfed;
namespace py = pybind11;

namespace {

DeltaType delta_type(const at::Tensor& deltas, at::ScalarType same) {
  if (deltas.scalar_type() == same) return kSame;
  FF_REQUIRE(same == at::kFloat, "deltas", "of x's dtype");
  if (deltas.scalar_type() == at::kBFloat16) return kBfloat16;
  FF_REQUIRE(deltas.scalar_type() == at::kHalf, "deltas", "float32, bfloat16 or float16");
  return kFloat16;
}

int threads() { return at::get_num_threads(); }

// ---- the quick check -----------------------------------------------------------------------------------------------

// Whether nothing at all can be wrong with these arguments: x is a plain CPU vector or batch of floats, `like` holds
// tensors of x's dtype and shape, `counters` and `reals` int64 and float64 tensors of one number per client, `beside`
// tensors of x's dtype and any shape, and no two of them share memory. False only means that kernels/check.py has to
// look: it knows the exceptions, and the words.
bool plainly_fine(py::handle x, const py::tuple& like, const py::tuple& counters, const py::tuple& reals,
                  const py::tuple& beside) {
  constexpr py::ssize_t kMost = 16;
  if (!THPVariable_Check(x.ptr()) || py::ssize_t(like.size() + counters.size() + reals.size() + beside.size()) >= kMost)
    return false;
  const at::Tensor& first = THPVariable_Unpack(x.ptr());
  const at::ScalarType dtype = first.scalar_type();
  if (first.dim() < 1 || first.dim() > 2 || first.numel() == 0 || (dtype != at::kFloat && dtype != at::kDouble))
    return false;
  struct Memory {
    const char *begin, *end;
  } memory[kMost];
  int count = 0;
  const auto enter = [&](const at::Tensor& t) {
    if (!t.is_cpu() || !t.is_contiguous() || t.requires_grad()) return false;
    const char* begin = static_cast<const char*>(t.const_data_ptr());
    const char* end = begin + t.nbytes();
    for (int i = 0; i < count; ++i)
      if (begin < memory[i].end && memory[i].begin < end) return false;
    memory[count++] = {begin, end};
    return true;
  };
  if (!enter(first)) return false;
  for (py::handle object : like) {
    if (!THPVariable_Check(object.ptr())) return false;
    const at::Tensor& t = THPVariable_Unpack(object.ptr());
    if (t.scalar_type() != dtype || t.sizes() != first.sizes() || !enter(t)) return false;
  }
  const auto per_client = [&](const py::tuple& scalars, at::ScalarType wanted) {
    for (py::handle object : scalars) {
      if (!THPVariable_Check(object.ptr())) return false;
      const at::Tensor& t = THPVariable_Unpack(object.ptr());
      if (t.scalar_type() != wanted || t.sizes() != first.sizes().slice(0, std::size_t(first.dim() - 1)) || !enter(t))
        return false;
    }
    return true;
  };
  if (!per_client(counters, at::kLong) || !per_client(reals, at::kDouble)) return false;
  for (py::handle object : beside) {
    if (!THPVariable_Check(object.ptr())) return false;
    const at::Tensor& t = THPVariable_Unpack(object.ptr());
    if (t.scalar_type() != dtype || !enter(t)) return false;
  }
  return true;
}

// The d of deltas (clients, d) and weights (clients,) about which nothing is unusual: floats of the same dtype, CPU,
// contiguous, outside autograd. Otherwise 0, and kernels/check.py has to look.
std::int64_t plain_deltas(py::handle deltas, py::handle weights) {
  if (!THPVariable_Check(deltas.ptr()) || !THPVariable_Check(weights.ptr())) return 0;
  const at::Tensor& rows = THPVariable_Unpack(deltas.ptr());
  const at::Tensor& scales = THPVariable_Unpack(weights.ptr());
  const at::ScalarType dtype = rows.scalar_type();
  const auto plain = [&](const at::Tensor& t) {
    return t.scalar_type() == dtype && t.is_cpu() && t.is_contiguous() && !t.requires_grad();
  };
  const bool fits = (dtype == at::kFloat || dtype == at::kDouble) && rows.dim() == 2 && scales.dim() == 1 &&
                    rows.size(0) == scales.size(0) && rows.numel() > 0 && plain(rows) && plain(scales);
  return fits ? rows.size(1) : 0;
}

// ---- server --------------------------------------------------------------------------------------------------------

// m may be absent where beta1 is 0: it would equal the delta.
ServerFormula server_formula(int formula, py::handle m, py::handle v, py::handle vmax, const py::tuple& n) {
  FF_REQUIRE(formula >= 0 && formula < kServerFormulas, "formula", "a ServerFormula");
  const ServerTraits& rule = kServerTraits[formula];
  FF_REQUIRE(!v.is_none() == rule.has_v, "v", "given exactly where the rule has it");
  FF_REQUIRE(!vmax.is_none() == rule.has_vmax, "vmax", "given exactly where the rule has it");
  FF_REQUIRE(!m.is_none() || !rule.has_m || server_numbers<double>(n).numbers.beta1 == 0, "m",
             "given unless beta1 is 0");
  return ServerFormula(formula);
}

template <class T> ServerVectors<T> server_vectors(const at::Tensor& x, py::handle m, py::handle v, py::handle vmax) {
  const std::int64_t d = x.numel();
  return {d, static_cast<T*>(x.data_ptr()), data_or_null<T>(m, "state['m']", d), data_or_null<T>(v, "state['v']", d),
          data_or_null<T>(vmax, "state['vmax']", d)};
}

template <class T>
void typed_server_step(ServerFormula formula, const at::Tensor& x, const at::Tensor& delta, py::handle m, py::handle v,
                       py::handle vmax, const py::tuple& n) {
  FF_REQUIRE(delta.numel() == x.numel(), "delta", "as long as x");
  const ServerVectors<T> vectors = server_vectors<T>(x, m, v, vmax);
  const DeltaType type = delta_type(delta, kDtype<T>);
  const ServerStepNumbers<T> k = server_numbers<T>(n);
  const void* along = delta.data_ptr();
  py::gil_scoped_release release;
  server_step<T>(formula, vectors, along, type, k.of_delta, k.numbers, threads());
}

void bind_server_step(int formula, py::handle x, py::handle delta, py::handle m, py::handle v, py::handle vmax,
                      const py::tuple& numbers) {
  const ServerFormula f = server_formula(formula, m, v, vmax, numbers);
  const at::Tensor& t = tensor(x, "x");
  if (t.scalar_type() == at::kDouble)
    return typed_server_step<double>(f, t, tensor(delta, "delta"), m, v, vmax, numbers);
  FF_REQUIRE(t.scalar_type() == at::kFloat, "x", "float32 or float64");
  typed_server_step<float>(f, t, tensor(delta, "delta"), m, v, vmax, numbers);
}

template <class T> Deltas<T> deltas_of(const at::Tensor& deltas, py::handle weights, std::int64_t d) {
  FF_REQUIRE(deltas.dim() == 2 && deltas.size(1) == d, "deltas", "(clients, d)");
  return {deltas.data_ptr(), delta_type(deltas, kDtype<T>), deltas.size(0),
          data<T>(weights, "weights", deltas.size(0))};
}

template <class T>
void typed_aggregate_step(ServerFormula formula, const at::Tensor& x, const at::Tensor& deltas, py::handle weights,
                          py::handle m, py::handle v, py::handle vmax, const py::tuple& n) {
  const ServerVectors<T> vectors = server_vectors<T>(x, m, v, vmax);
  const Deltas<T> from = deltas_of<T>(deltas, weights, x.numel());
  const ServerStepNumbers<T> k = server_numbers<T>(n);
  py::gil_scoped_release release;
  aggregate_step<T>(formula, vectors, from, k.of_delta, k.numbers, threads());
}

void bind_aggregate_step(int formula, py::handle x, py::handle deltas, py::handle weights, py::handle m, py::handle v,
                         py::handle vmax, const py::tuple& n) {
  const ServerFormula f = server_formula(formula, m, v, vmax, n);
  const at::Tensor& t = tensor(x, "x");
  const at::Tensor& from = tensor(deltas, "deltas");
  if (t.scalar_type() == at::kDouble) return typed_aggregate_step<double>(f, t, from, weights, m, v, vmax, n);
  FF_REQUIRE(t.scalar_type() == at::kFloat, "x", "float32 or float64");
  typed_aggregate_step<float>(f, t, from, weights, m, v, vmax, n);
}

template <class T> void typed_weighted_sum(const at::Tensor& deltas, py::handle weights, const at::Tensor& out) {
  const Deltas<T> from = deltas_of<T>(deltas, weights, out.numel());
  T* sum = static_cast<T*>(out.data_ptr());
  const std::int64_t d = out.numel();
  py::gil_scoped_release release;
  weighted_sum<T>(d, from, sum, threads());
}

void bind_weighted_sum(py::handle deltas, py::handle weights, py::handle out) {
  const at::Tensor& t = tensor(out, "out");
  if (t.scalar_type() == at::kDouble) return typed_weighted_sum<double>(tensor(deltas, "deltas"), weights, t);
  FF_REQUIRE(t.scalar_type() == at::kFloat, "out", "float32 or float64");
  typed_weighted_sum<float>(tensor(deltas, "deltas"), weights, t);
}

template <class T> void typed_trimmed_mean(const at::Tensor& deltas, std::int64_t trim, const at::Tensor& out) {
  const std::int64_t d = out.numel();
  FF_REQUIRE(deltas.dim() == 2 && deltas.size(1) == d, "deltas", "(clients, d)");
  FF_REQUIRE(trim >= 0 && trim < deltas.size(0) - trim, "trim", "less than half of the clients");
  const DeltaType type = delta_type(deltas, kDtype<T>);
  const std::int64_t clients = deltas.size(0);
  const void* rows = deltas.data_ptr();
  T* mean = static_cast<T*>(out.data_ptr());
  py::gil_scoped_release release;
  trimmed_mean<T>(d, rows, type, clients, trim, mean, threads());
}

void bind_trimmed_mean(py::handle deltas, std::int64_t trim, py::handle out) {
  const at::Tensor& t = tensor(out, "out");
  if (t.scalar_type() == at::kDouble) return typed_trimmed_mean<double>(tensor(deltas, "deltas"), trim, t);
  FF_REQUIRE(t.scalar_type() == at::kFloat, "out", "float32 or float64");
  typed_trimmed_mean<float>(tensor(deltas, "deltas"), trim, t);
}

// ---- client --------------------------------------------------------------------------------------------------------

template <class T> struct Rows {
  const T* data;
  bool shared;
};

// A vector per client, or one for all.
template <class T> Rows<T> rows_or_null(py::handle object, const char* name, std::int64_t clients, std::int64_t d) {
  if (object.is_none()) return {nullptr, false};
  const bool shared = tensor(object, name).dim() == 1;
  return {data<T>(object, name, shared ? d : clients * d), shared};
}

struct ClientArguments {
  int formula, cover, step_size;
  py::handle x, grad, m, v, nu, mu, layout, grad_prev, step, refreshes, lr, theta, move;
  py::handle given_lr, loss, anchor, correction, previous_grad, epoch, finished;
};

void require_state(const ClientArguments& a) {
  FF_REQUIRE(a.formula >= 0 && a.formula < kDirections, "formula", "a DirectionFormula");
  const DirectionTraits& direction = kDirectionTraits[a.formula];
  const bool second_moment = direction.has_v, covered = a.cover != kNoCover;
  FF_REQUIRE(a.cover >= 0 && a.cover < kCovers && (second_moment || !covered), "cover", "a CoverForm that fits");
  FF_REQUIRE(a.step_size >= 0 && a.step_size < kStepSizes && (a.step_size == kGiven || a.formula == kDirectionSgd),
             "step_size", "a StepSizeRule that fits");
  FF_REQUIRE(!a.m.is_none() || !direction.has_m, "m", "given");
  FF_REQUIRE(!second_moment || covered || !a.v.is_none(), "v", "given");
  FF_REQUIRE(!covered || (!a.mu.is_none() && !a.layout.is_none()), "mu", "given with its cover");
  FF_REQUIRE(!second_moment || (!a.step.is_none() && !a.refreshes.is_none()), "step", "given with refreshes");
  FF_REQUIRE(a.step_size != kSps || (!a.loss.is_none() && !a.lr.is_none()), "loss", "given with lr");
  if (a.step_size == kDeltaSgd) {
    FF_REQUIRE(!a.step.is_none() && !a.lr.is_none() && !a.theta.is_none() && !a.move.is_none(), "step",
               "given with lr, theta, move");
    FF_REQUIRE(!a.grad_prev.is_none() || !a.previous_grad.is_none(), "previous_grad", "given");
  }
}

template <class T> void typed_client_step(const ClientArguments& a, const at::Tensor& x, const py::tuple& n) {
  FF_REQUIRE(x.dim() == 1 || x.dim() == 2, "x", "(d,) or (clients, d)");
  const std::int64_t clients = x.dim() == 2 ? x.size(0) : 1, d = x.size(-1), all = clients * d;
  CoverLayout layout;
  if (a.cover != kNoCover) {
    const at::Tensor& numbers = tensor(a.layout, "cover");
    layout = read_layout(data<std::int64_t>(a.layout, "cover", numbers.numel()), numbers.numel(), d);
    FF_REQUIRE(tensor(a.mu, "state['mu']").dim() == x.dim(), "state['mu']", "of as many axes as x");
  }
  const bool loss_is_number = PyFloat_Check(a.loss.ptr());
  FF_REQUIRE(!loss_is_number || clients == 1, "loss", "one per client");
  const double one_loss = loss_is_number ? PyFloat_AS_DOUBLE(a.loss.ptr()) : 0.0;
  const double* loss = loss_is_number ? &one_loss : data_or_null<double>(a.loss, "loss", clients);
  const Rows<T> anchor = rows_or_null<T>(a.anchor, "anchor", clients, d);
  const Rows<T> correction = rows_or_null<T>(a.correction, "correction", clients, d);
  const ClientVectors<T> vectors{clients,
                                 d,
                                 layout.mu_size,
                                 static_cast<T*>(x.data_ptr()),
                                 data<T>(a.grad, "grad", all),
                                 data_or_null<T>(a.m, "state['m']", all),
                                 data_or_null<T>(a.v, "state['v']", all),
                                 data_or_null<T>(a.nu, "state['nu']", all),
                                 data_or_null<T>(a.mu, "state['mu']", clients * layout.mu_size),
                                 data_or_null<T>(a.grad_prev, "state['grad_prev']", all),
                                 data_or_null<T>(a.previous_grad, "previous_grad", all),
                                 anchor.data,
                                 correction.data,
                                 anchor.shared,
                                 correction.shared};
  const ClientScalars scalars{data_or_null<std::int64_t>(a.step, "state['step']", clients),
                              data_or_null<std::int64_t>(a.refreshes, "state['refreshes']", clients),
                              data_or_null<double>(a.lr, "state['lr']", clients),
                              data_or_null<double>(a.theta, "state['theta']", clients),
                              data_or_null<double>(a.move, "state['move']", clients),
                              data_or_null<double>(a.given_lr, "lr", clients),
                              loss,
                              data_or_null<std::int64_t>(a.epoch, "epoch", clients),
                              data_or_null<bool>(a.finished, "finished", clients)};
  const ClientStep<T> step{DirectionFormula(a.formula),
                           CoverForm(a.cover),
                           StepSizeRule(a.step_size),
                           client_numbers(n),
                           vectors,
                           scalars,
                           &layout,
                           threads()};
  py::gil_scoped_release release;
  client_step<T>(step);
}

void bind_client_step(int formula, int cover, int step_size, py::handle x, py::handle grad, py::handle m, py::handle v,
                      py::handle nu, py::handle mu, py::handle layout, py::handle grad_prev, py::handle step,
                      py::handle refreshes, py::handle lr, py::handle theta, py::handle move, py::handle given_lr,
                      py::handle loss, py::handle anchor, py::handle correction, py::handle previous_grad,
                      py::handle epoch, py::handle finished, const py::tuple& numbers) {
  const ClientArguments a{formula,  cover,  step_size, x,          grad,          m,     v,       nu,
                          mu,       layout, grad_prev, step,       refreshes,     lr,    theta,   move,
                          given_lr, loss,   anchor,    correction, previous_grad, epoch, finished};
  require_state(a);
  const at::Tensor& t = tensor(x, "x");
  if (t.scalar_type() == at::kDouble) return typed_client_step<double>(a, t, numbers);
  FF_REQUIRE(t.scalar_type() == at::kFloat, "x", "float32 or float64");
  typed_client_step<float>(a, t, numbers);
}

// ---- norms ---------------------------------------------------------------------------------------------------------

// One vector (d,) is one row.
struct RowCount {
  std::int64_t clients, d;
};
RowCount rows_of(const at::Tensor& t, const char* name) {
  FF_REQUIRE(t.dim() == 1 || t.dim() == 2, name, "(d,) or (clients, d)");
  return {t.dim() == 2 ? t.size(0) : 1, t.size(-1)};
}

void bind_norms(py::handle x, py::handle out) {
  const at::Tensor& t = tensor(x, "x");
  const RowCount rows = rows_of(t, "x");
  double* sums = data<double>(out, "out", rows.clients);
  if (t.scalar_type() == at::kDouble) {
    py::gil_scoped_release release;
    return norms<double>(rows.clients, rows.d, static_cast<const double*>(t.data_ptr()), sums, threads());
  }
  FF_REQUIRE(t.scalar_type() == at::kFloat, "x", "float32 or float64");
  py::gil_scoped_release release;
  norms<float>(rows.clients, rows.d, static_cast<const float*>(t.data_ptr()), sums, threads());
}

void bind_clip(py::handle x, double limit, py::handle out) {
  const at::Tensor& t = tensor(x, "x");
  const RowCount rows = rows_of(t, "x");
  double* sums = data<double>(out, "out", rows.clients);
  if (t.scalar_type() == at::kDouble) {
    py::gil_scoped_release release;
    return clip<double>(rows.clients, rows.d, static_cast<double*>(t.data_ptr()), limit, sums, threads());
  }
  FF_REQUIRE(t.scalar_type() == at::kFloat, "x", "float32 or float64");
  py::gil_scoped_release release;
  clip<float>(rows.clients, rows.d, static_cast<float*>(t.data_ptr()), limit, sums, threads());
}

// ---- random numbers ------------------------------------------------------------------------------------------------

Word word(py::handle object, const char* name) {
  const unsigned long long value = PyLong_AsUnsignedLongLong(object.ptr());
  if (value == ~0ull && PyErr_Occurred()) throw py::error_already_set();
  FF_REQUIRE(value <= 0xFFFFFFFFull, name, "a word of 32 bits");
  return Word(value);
}

// kernels/streams.py: StreamWords
Stream stream_of(const py::tuple& words) {
  FF_REQUIRE(words.size() == 4, "stream", "StreamWords");
  const auto item = [&](py::ssize_t index) { return word(PyTuple_GET_ITEM(words.ptr(), index), "stream"); };
  return {item(0), item(1), item(2), item(3)};
}

// The numbers of one client into out (n,), or of a tensor of clients into (clients, n).
template <class T, class Draw> void draw_rows(py::handle out, const py::tuple& words, py::handle clients, Draw draw) {
  const at::Tensor& t = tensor(out, "out");
  FF_REQUIRE(t.scalar_type() == kDtype<T>, "out", "of another dtype");
  const RowCount rows = rows_of(t, "out");
  const bool alone = PyLong_Check(clients.ptr());
  FF_REQUIRE(alone == (t.dim() == 1), "clients", "one id for (n,), a tensor of ids for (clients, n)");
  const std::int64_t id = alone ? word(clients, "clients") : 0;
  const std::int64_t* ids = alone ? &id : data<std::int64_t>(clients, "clients", rows.clients);
  T* numbers = static_cast<T*>(t.data_ptr());
  const Stream stream = stream_of(words);
  py::gil_scoped_release release;
  draw(rows.clients, rows.d, stream, ids, numbers, threads());
}

void bind_uniform(py::handle out, const py::tuple& stream, py::handle clients) {
  draw_rows<float>(out, stream, clients, uniform);
}
void bind_normal(py::handle out, const py::tuple& stream, py::handle clients) {
  draw_rows<float>(out, stream, clients, normal);
}
void bind_permutation(py::handle out, const py::tuple& stream, py::handle clients) {
  draw_rows<std::int64_t>(out, stream, clients, permutation);
}

void bind_shuffles(py::handle out, const py::tuple& words, py::handle clients, py::handle steps, py::handle counts) {
  const at::Tensor& t = tensor(out, "out");
  FF_REQUIRE(t.scalar_type() == at::kLong && t.dim() == 2, "out", "(rows, width) int64");
  const RowCount rows = rows_of(t, "out");
  const Shuffles of = {data<std::int64_t>(clients, "clients", rows.clients),
                       data<std::int64_t>(steps, "steps", rows.clients),
                       data<std::int64_t>(counts, "counts", rows.clients)};
  for (std::int64_t row = 0; row < rows.clients; ++row)
    FF_REQUIRE(of.counts[row] >= 0 && of.counts[row] <= rows.d, "counts", "at most the width");
  std::int64_t* orders = static_cast<std::int64_t*>(t.data_ptr());
  const Stream stream = stream_of(words);
  py::gil_scoped_release release;
  shuffles(rows.clients, rows.d, stream, of, orders, threads());
}

// ---- the machine ---------------------------------------------------------------------------------------------------

void bind_stream_probe(const py::list& reads, const py::list& updates) {
  FF_REQUIRE(updates.size() + reads.size() > 0 && reads.size() <= 1024, "reads", "given, at most 1024 arrays");
  const std::int64_t d = tensor(updates.size() ? updates[0] : reads[0], "arrays").numel();
  std::vector<const float*> read;
  std::vector<float*> updated;
  for (py::handle array : reads) read.push_back(data<float>(array, "reads", d));
  for (py::handle array : updates) updated.push_back(data<float>(array, "updates", d));
  py::gil_scoped_release release;
  stream_probe(d, read, updated, threads());
}

// The names of formulas, each in the place of its number.
template <class Traits, std::size_t N> std::vector<std::string> names_of(const Traits (&formulas)[N]) {
  std::vector<std::string> names;
  for (const Traits& formula : formulas) names.emplace_back(formula.name);
  return names;
}
std::vector<std::string> server_formulas() { return names_of(kServerTraits); }
std::vector<std::string> directions() { return names_of(kDirectionTraits); }
#define FF_NAME(name, Number) #name,
std::vector<std::string> step_sizes() { return {FF_STEP_SIZES(FF_NAME)}; }
std::vector<std::string> covers() { return {FF_COVERS(FF_NAME)}; }
#undef FF_NAME

py::dict build_info() {
  py::dict info;
#if defined(__clang__)
  info["compiler"] = std::string("clang ") + __clang_version__;
#elif defined(__GNUC__)
  info["compiler"] = std::string("gcc ") + __VERSION__;
#else
  info["compiler"] = "unknown";
#endif
  info["simd"] = compiled_levels()[std::size_t(simd_level())];
  info["simd_compiled"] = compiled_levels();
#if defined(_OPENMP)
  info["openmp"] = true;
#else
  info["openmp"] = false;
#endif
  return info;
}

}  // namespace

PYBIND11_MODULE(_core, module) {
  module.doc() = "FastFed's compiled kernels; private: use fastfed.kernels.";
  module.def("plainly_fine", plainly_fine);
  module.def("plain_deltas", plain_deltas);
  module.def("server_step", bind_server_step);
  module.def("aggregate_step", bind_aggregate_step);
  module.def("weighted_sum", bind_weighted_sum);
  module.def("trimmed_mean", bind_trimmed_mean);
  module.def("client_step", bind_client_step);
  module.def("norms", bind_norms);
  module.def("clip", bind_clip);
  module.def("uniform", bind_uniform);
  module.def("normal", bind_normal);
  module.def("permutation", bind_permutation);
  module.def("shuffles", bind_shuffles);
  module.def("stream_probe", bind_stream_probe);
  module.def("server_formulas", server_formulas);
  module.def("directions", directions);
  module.def("step_sizes", step_sizes);
  module.def("covers", covers);
  module.def("server_numbers", [] { return kServerNumberNames; });
  module.def("client_numbers", [] { return kClientNumberNames; });
  module.def("build_info", build_info);
  bind_program(module);
}
