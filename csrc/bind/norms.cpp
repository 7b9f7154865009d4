// Norms of rows, and rows scaled down to a norm.
#include "kernels/norms.h"
#include "bind/module.h"
#include "bind/tensors.h"

namespace fastfed {

namespace {

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

}  // namespace

void bind_row_norms(py::module_& module) {
  module.def("norms", bind_norms);
  module.def("clip", bind_clip);
}

}  // namespace fastfed
