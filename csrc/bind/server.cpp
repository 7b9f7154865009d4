// Server steps, and sums over clients.
#include "bind/module.h"
#include "bind/numbers.h"
#include "bind/tensors.h"
#include "kernels/server_step.h"
#include "kernels/trimmed_mean.h"

namespace fastfed {

namespace {

DeltaType delta_type(const at::Tensor& deltas, at::ScalarType same) {
  if (deltas.scalar_type() == same) return kSame;
  FF_REQUIRE(same == at::kFloat, "deltas", "of x's dtype");
  if (deltas.scalar_type() == at::kBFloat16) return kBfloat16;
  FF_REQUIRE(deltas.scalar_type() == at::kHalf, "deltas", "float32, bfloat16 or float16");
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

}  // namespace

void bind_server(py::module_& module) {
  module.def("server_step", bind_server_step);
  module.def("aggregate_step", bind_aggregate_step);
  module.def("weighted_sum", bind_weighted_sum);
  module.def("trimmed_mean", bind_trimmed_mean);
}

}  // namespace fastfed
