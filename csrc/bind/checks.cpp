// The quick check: whether nothing at all can be wrong with the arguments of a usual call.
#include "bind/module.h"
#include "bind/tensors.h"

namespace fastfed {

namespace {

// Whether nothing at all can be wrong with these arguments: x is a plain CPU vector or batch of floats, `like` holds
// tensors of x's dtype and shape, `counters` and `reals` int64 and float64 tensors of one number per client, `beside`
// tensors of x's dtype and any shape, and no two of them share memory. False only means that kernels/check.py has to
// look: it knows the exceptions, and the words.
bool surely_valid(py::handle x, const py::tuple& like, const py::tuple& counters, const py::tuple& reals,
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
std::int64_t surely_valid_deltas(py::handle deltas, py::handle weights) {
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

}  // namespace

void bind_checks(py::module_& module) {
  module.def("surely_valid", surely_valid);
  module.def("surely_valid_deltas", surely_valid_deltas);
}

}  // namespace fastfed
