// The quick check: whether nothing at all can be wrong with the arguments of a usual call.
#include "bind/arrays.h"
#include "bind/module.h"

namespace fastfed {

namespace {

// Whether nothing at all can be wrong with these arguments: x is a plain CPU vector or batch of floats, `like` holds
// tensors of x's dtype and shape, `counters` and `reals` int64 and float64 tensors of one number per client, `beside`
// tensors of x's dtype and any shape, and no two of them share memory. False only means that kernels/check.py has to
// look: it knows the exceptions, and the words.
bool surely_valid(py::handle x, const py::tuple& like, const py::tuple& counters, const py::tuple& reals,
                  const py::tuple& beside) {
  constexpr py::ssize_t kMost = 16;
  if (py::ssize_t(like.size() + counters.size() + reals.size() + beside.size()) >= kMost) return false;
  Array first;
  if (!look_at_tensor(x, first)) return false;
  const Dtype dtype = first.dtype;
  if (first.dim < 1 || first.dim > 2 || first.numel == 0 || (dtype != Dtype::kFloat && dtype != Dtype::kDouble))
    return false;
  struct Memory {
    const char *begin, *end;
  } memory[kMost];
  int count = 0;
  const auto enter = [&](py::handle object, const Array& a) {
    if (!a.on_cpu || !a.contiguous || !a.writable || requires_grad(object)) return false;
    const char *begin = a.data, *end = begin + a.bytes;
    for (int i = 0; i < count; ++i)
      if (begin < memory[i].end && memory[i].begin < end) return false;
    memory[count++] = {begin, end};
    return true;
  };
  if (!enter(x, first)) return false;
  Array a;
  for (py::handle object : like)
    if (!look_at_tensor(object, a) || a.dtype != dtype || !a.same_shape(first) || !enter(object, a)) return false;
  const std::int64_t clients = first.dim == 2 ? first.first : 1;
  const auto per_client = [&](const py::tuple& scalars, Dtype wanted) {
    for (py::handle object : scalars) {
      const bool fits = look_at_tensor(object, a) && a.dtype == wanted && a.dim == first.dim - 1 && a.numel == clients;
      if (!fits || !enter(object, a)) return false;
    }
    return true;
  };
  if (!per_client(counters, Dtype::kLong) || !per_client(reals, Dtype::kDouble)) return false;
  for (py::handle object : beside)
    if (!look_at_tensor(object, a) || a.dtype != dtype || !enter(object, a)) return false;
  return true;
}

// The d of deltas (clients, d) and weights (clients,) about which nothing is unusual: floats of the same dtype, CPU,
// contiguous, outside autograd. Otherwise 0, and kernels/check.py has to look.
std::int64_t surely_valid_deltas(py::handle deltas, py::handle weights) {
  Array rows, scales;
  if (!look_at_tensor(deltas, rows) || !look_at_tensor(weights, scales)) return 0;
  const Dtype dtype = rows.dtype;
  const auto plain = [&](py::handle object, const Array& a) {
    return a.dtype == dtype && a.on_cpu && a.contiguous && !requires_grad(object);
  };
  const bool fits = (dtype == Dtype::kFloat || dtype == Dtype::kDouble) && rows.dim == 2 && scales.dim == 1 &&
                    rows.first == scales.first && rows.numel > 0 && plain(deltas, rows) && plain(weights, scales);
  return fits ? rows.last : 0;
}

}  // namespace

void bind_checks(py::module_& module) {
  module.def("surely_valid", surely_valid);
  module.def("surely_valid_deltas", surely_valid_deltas);
}

}  // namespace fastfed
