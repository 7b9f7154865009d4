// Norms of rows, and rows scaled down to a norm.
#include "kernels/norms.h"
#include "bind/arrays.h"
#include "bind/module.h"

namespace fastfed {

namespace {

void bind_norms(py::handle x, py::handle out) {
  const Array t = array(x, "x");
  const RowCount rows = rows_of(t, "x");
  double* sums = data<double>(out, "out", rows.clients);
  const int team = threads();
  if (t.dtype == Dtype::kDouble) {
    py::gil_scoped_release release;
    return norms<double>(rows.clients, rows.d, elements<const double>(t, "x"), sums, team);
  }
  FF_REQUIRE(t.dtype == Dtype::kFloat, "x", "float32 or float64");
  py::gil_scoped_release release;
  norms<float>(rows.clients, rows.d, elements<const float>(t, "x"), sums, team);
}

void bind_clip(py::handle x, double limit, py::handle out) {
  const Array t = array(x, "x");
  const RowCount rows = rows_of(t, "x");
  double* sums = data<double>(out, "out", rows.clients);
  const int team = threads();
  if (t.dtype == Dtype::kDouble) {
    py::gil_scoped_release release;
    return clip<double>(rows.clients, rows.d, elements<double>(t, "x"), limit, sums, team);
  }
  FF_REQUIRE(t.dtype == Dtype::kFloat, "x", "float32 or float64");
  py::gil_scoped_release release;
  clip<float>(rows.clients, rows.d, elements<float>(t, "x"), limit, sums, team);
}

}  // namespace

void bind_row_norms(py::module_& module) {
  module.def("norms", bind_norms);
  module.def("clip", bind_clip);
}

}  // namespace fastfed
