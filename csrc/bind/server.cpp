// Server steps, and sums over clients.
#include "bind/arrays.h"
#include "bind/module.h"
#include "bind/numbers.h"
#include "kernels/server_step.h"
#include "kernels/trimmed_mean.h"

namespace fastfed {

namespace {

DeltaType delta_type(const Array& deltas, Dtype same) {
  if (deltas.dtype == same) return kSame;
  FF_REQUIRE(same == Dtype::kFloat, "deltas", "of x's dtype");
  if (deltas.dtype == Dtype::kBfloat16) return kBfloat16;
  FF_REQUIRE(deltas.dtype == Dtype::kHalf, "deltas", "float32, bfloat16 or float16");
  return kFloat16;
}

// m may be absent where beta1 is 0: it would equal the delta.
ServerFormula server_formula(int formula, py::handle m, py::handle v, py::handle vmax, const py::tuple& n) {
  FF_REQUIRE(formula >= 0 && formula < kServerFormulas, "formula", "a ServerFormula");
  const ServerTraits& traits = kServerTraits[formula];
  FF_REQUIRE(!v.is_none() == traits.has_v, "v", "given exactly where the rule has it");
  FF_REQUIRE(!vmax.is_none() == traits.has_vmax, "vmax", "given exactly where the rule has it");
  FF_REQUIRE(!m.is_none() || !traits.has_m || server_numbers<double>(n).numbers.beta1 == 0, "m",
             "given unless beta1 is 0");
  return ServerFormula(formula);
}

template <class T> ServerVectors<T> server_vectors(const Array& x, py::handle m, py::handle v, py::handle vmax) {
  const std::int64_t d = x.numel;
  return {d, elements<T>(x, "x"), data_or_null<T>(m, "state['m']", d), data_or_null<T>(v, "state['v']", d),
          data_or_null<T>(vmax, "state['vmax']", d)};
}

template <class T>
void typed_server_step(ServerFormula formula, const Array& x, const Array& delta, py::handle m, py::handle v,
                       py::handle vmax, const py::tuple& n) {
  FF_REQUIRE(delta.numel == x.numel, "delta", "as long as x");
  const ServerVectors<T> vectors = server_vectors<T>(x, m, v, vmax);
  const DeltaType type = delta_type(delta, kDtype<T>);
  const ServerStepNumbers<T> k = server_numbers<T>(n);
  const void* along = delta.data;
  const int team = threads();
  py::gil_scoped_release release;
  server_step<T>(formula, vectors, along, type, k.of_delta, k.numbers, team);
}

void bind_server_step(int formula, py::handle x, py::handle delta, py::handle m, py::handle v, py::handle vmax,
                      const py::tuple& numbers) {
  const ServerFormula f = server_formula(formula, m, v, vmax, numbers);
  const Array t = array(x, "x");
  if (t.dtype == Dtype::kDouble) return typed_server_step<double>(f, t, array(delta, "delta"), m, v, vmax, numbers);
  FF_REQUIRE(t.dtype == Dtype::kFloat, "x", "float32 or float64");
  typed_server_step<float>(f, t, array(delta, "delta"), m, v, vmax, numbers);
}

template <class T> Deltas<T> deltas_of(const Array& deltas, py::handle weights, std::int64_t d) {
  FF_REQUIRE(deltas.dim == 2 && deltas.last == d, "deltas", "(clients, d)");
  return {deltas.data, delta_type(deltas, kDtype<T>), deltas.first, data<const T>(weights, "weights", deltas.first)};
}

template <class T>
void typed_aggregate_step(ServerFormula formula, const Array& x, const Array& deltas, py::handle weights, py::handle m,
                          py::handle v, py::handle vmax, const py::tuple& n) {
  const ServerVectors<T> vectors = server_vectors<T>(x, m, v, vmax);
  const Deltas<T> from = deltas_of<T>(deltas, weights, x.numel);
  const ServerStepNumbers<T> k = server_numbers<T>(n);
  const int team = threads();
  py::gil_scoped_release release;
  aggregate_step<T>(formula, vectors, from, k.of_delta, k.numbers, team);
}

void bind_aggregate_step(int formula, py::handle x, py::handle deltas, py::handle weights, py::handle m, py::handle v,
                         py::handle vmax, const py::tuple& n) {
  const ServerFormula f = server_formula(formula, m, v, vmax, n);
  const Array t = array(x, "x");
  const Array from = array(deltas, "deltas");
  if (t.dtype == Dtype::kDouble) return typed_aggregate_step<double>(f, t, from, weights, m, v, vmax, n);
  FF_REQUIRE(t.dtype == Dtype::kFloat, "x", "float32 or float64");
  typed_aggregate_step<float>(f, t, from, weights, m, v, vmax, n);
}

// `parts`: of every layer (x, m, v, vmax); `clients`: of every client a list of arrays, one for each layer.
template <class T>
void typed_aggregate_parts(int formula, const py::list& parts, const py::list& clients, py::handle weights,
                           bool subtract, const py::tuple& n) {
  std::vector<Part<T>> made;
  ServerFormula f{};
  for (py::handle part : parts) {
    const auto vectors = py::cast<py::tuple>(part);
    FF_REQUIRE(vectors.size() == 4, "parts", "of x, m, v and vmax");
    f = server_formula(formula, vectors[1], vectors[2], vectors[3], n);
    made.push_back({server_vectors<T>(array(vectors[0], "x"), vectors[1], vectors[2], vectors[3]), {}});
  }
  for (py::handle client : clients) {
    const auto rows = py::cast<py::list>(client);
    FF_REQUIRE(rows.size() == made.size(), "clients", "of as many arrays as x");
    for (std::size_t i = 0; i < made.size(); ++i)
      made[i].rows.push_back(data<const T>(rows[i], "deltas", made[i].vectors.d));
  }
  const T* scales = data<const T>(weights, "weights", std::int64_t(clients.size()));
  const ServerStepNumbers<T> k = server_numbers<T>(n);
  const int team = threads();
  py::gil_scoped_release release;
  aggregate_parts<T>(f, made, scales, subtract, k.of_delta, k.numbers, team);
}

void bind_aggregate_parts(int formula, const py::list& parts, const py::list& clients, py::handle weights,
                          bool subtract, const py::tuple& n) {
  if (array(weights, "weights").dtype == Dtype::kDouble)
    return typed_aggregate_parts<double>(formula, parts, clients, weights, subtract, n);
  typed_aggregate_parts<float>(formula, parts, clients, weights, subtract, n);
}

template <class T> void typed_weighted_sum(const Array& deltas, py::handle weights, const Array& out) {
  const Deltas<T> from = deltas_of<T>(deltas, weights, out.numel);
  T* sum = elements<T>(out, "out");
  const std::int64_t d = out.numel;
  const int team = threads();
  py::gil_scoped_release release;
  weighted_sum<T>(d, from, sum, team);
}

void bind_weighted_sum(py::handle deltas, py::handle weights, py::handle out) {
  const Array t = array(out, "out");
  if (t.dtype == Dtype::kDouble) return typed_weighted_sum<double>(array(deltas, "deltas"), weights, t);
  FF_REQUIRE(t.dtype == Dtype::kFloat, "out", "float32 or float64");
  typed_weighted_sum<float>(array(deltas, "deltas"), weights, t);
}

template <class T> void typed_trimmed_mean(const Array& deltas, std::int64_t trim, const Array& out) {
  const std::int64_t d = out.numel;
  FF_REQUIRE(deltas.dim == 2 && deltas.last == d, "deltas", "(clients, d)");
  FF_REQUIRE(trim >= 0 && trim < deltas.first - trim, "trim", "less than half of the clients");
  const DeltaType type = delta_type(deltas, kDtype<T>);
  const std::int64_t clients = deltas.first;
  const void* rows = deltas.data;
  T* mean = elements<T>(out, "out");
  const int team = threads();
  py::gil_scoped_release release;
  trimmed_mean<T>(d, rows, type, clients, trim, mean, team);
}

void bind_trimmed_mean(py::handle deltas, std::int64_t trim, py::handle out) {
  const Array t = array(out, "out");
  if (t.dtype == Dtype::kDouble) return typed_trimmed_mean<double>(array(deltas, "deltas"), trim, t);
  FF_REQUIRE(t.dtype == Dtype::kFloat, "out", "float32 or float64");
  typed_trimmed_mean<float>(array(deltas, "deltas"), trim, t);
}

}  // namespace

void bind_server(py::module_& module) {
  module.def("server_step", bind_server_step);
  module.def("aggregate_step", bind_aggregate_step);
  module.def("aggregate_parts", bind_aggregate_parts);
  module.def("weighted_sum", bind_weighted_sum);
  module.def("trimmed_mean", bind_trimmed_mean);
}

}  // namespace fastfed
