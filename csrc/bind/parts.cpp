// Steps along the gradients of a model in parts, for optimizers. Each function answers at once, with nothing written,
// where an array is not what the usual call has (on the CPU, contiguous, of one dtype): its caller then has a closer
// look.
#include "bind/arrays.h"
#include "bind/module.h"
#include "bind/numbers.h"
#include "kernels/parts_step.h"

namespace fastfed {

namespace {

using Lengths = std::vector<std::int64_t>;

// The arrays of a model: kOther if one of them is unusual.
struct Model {
  Dtype dtype = Dtype::kOther;
  Lengths lengths;
  std::vector<char*> data;

  explicit Model(const py::list& x) {
    Array a;
    for (py::handle one : x) {
      const bool usual = look_at_tensor(one, a) && a.on_cpu && a.contiguous &&
                         (a.dtype == Dtype::kFloat || a.dtype == Dtype::kDouble) &&
                         (lengths.empty() || a.dtype == dtype);
      dtype = usual ? a.dtype : Dtype::kOther;
      if (!usual) return;
      lengths.push_back(a.numel);
      data.push_back(a.data);
    }
  }

  template <class T> T* at(std::size_t i) const { return reinterpret_cast<T*>(data[i]); }
};

// The elements of a list's arrays, which are Ts and have these lengths; nulls for None.
template <class T> bool look_at_list(py::handle list, const Lengths& lengths, std::vector<T*>& found) {
  found.assign(lengths.size(), nullptr);
  if (list.is_none()) return true;
  if (!PyList_Check(list.ptr()) || std::size_t(PyList_GET_SIZE(list.ptr())) != lengths.size()) return false;
  Array a;
  for (std::size_t i = 0; i < lengths.size(); ++i) {
    if (!look_at_tensor(PyList_GET_ITEM(list.ptr(), py::ssize_t(i)), a) || !a.on_cpu || !a.contiguous) return false;
    if (a.dtype != kDtype<std::remove_const_t<T>> || a.numel != lengths[i]) return false;
    found[i] = reinterpret_cast<T*>(a.data);
  }
  return true;
}

// Calls work(T()) for the dtype of the arrays; the answer to an unusual one is `otherwise`.
template <class Answer, class Work> Answer for_dtype(Dtype dtype, Answer otherwise, Work work) {
  if (dtype == Dtype::kFloat) return work(float());
  return dtype == Dtype::kDouble ? work(double()) : otherwise;
}

bool bind_gradient_parts(int formula, const py::list& x, const py::list& grad, py::handle m, py::handle v,
                         py::handle vmax, double scale, double weight_decay, const py::tuple& n) {
  FF_REQUIRE(formula >= 0 && formula < kServerFormulas, "formula", "a ServerFormula");
  const ServerTraits& traits = kServerTraits[formula];
  FF_REQUIRE(!v.is_none() == traits.has_v, "v", "given exactly where the rule has it");
  FF_REQUIRE(!vmax.is_none() == traits.has_vmax, "vmax", "given exactly where the rule has it");
  FF_REQUIRE(!m.is_none() || !traits.has_m || server_numbers<double>(n).numbers.beta1 == 0, "m",
             "given unless beta1 is 0");
  const Model model(x);
  const Lengths& lengths = model.lengths;
  return for_dtype(model.dtype, false, [&](auto zero) {
    using T = decltype(zero);
    std::vector<T*> ms, vs, maxima;
    std::vector<const T*> grads;
    if (!look_at_list(grad, lengths, grads) || !look_at_list(m, lengths, ms) || !look_at_list(v, lengths, vs) ||
        !look_at_list(vmax, lengths, maxima))
      return false;
    std::vector<GradientPart<T>> parts;
    for (std::size_t i = 0; i < lengths.size(); ++i)
      parts.push_back({{lengths[i], model.at<T>(i), ms[i], vs[i], maxima[i]}, grads[i]});
    const ServerStepNumbers<T> k = server_numbers<T>(n);
    const int team = threads();
    py::gil_scoped_release release;
    gradient_parts<T>(ServerFormula(formula), parts, {scale, weight_decay}, k.of_delta, k.numbers, team);
    return true;
  });
}

bool bind_covered_parts(int formula, int cover, const py::list& x, const py::list& grad, py::handle m,
                        const py::list& mu, const py::list& layouts, double scale, double weight_decay, double step,
                        double root_scale, const py::tuple& n) {
  FF_REQUIRE(formula >= 0 && formula < kDirections && kDirectionTraits[formula].has_v, "formula", "one for covers");
  FF_REQUIRE(cover > kNoCover && cover < kCovers, "cover", "a CoverForm");
  FF_REQUIRE(!m.is_none() || !kDirectionTraits[formula].has_m, "m", "given");
  const Model model(x);
  const Lengths& lengths = model.lengths;
  return for_dtype(model.dtype, false, [&](auto zero) {
    using T = decltype(zero);
    std::vector<T*> ms, mus;
    std::vector<const T*> grads;
    FF_REQUIRE(layouts.size() == lengths.size(), "layouts", "as many as arrays");
    if (!look_at_list(grad, lengths, grads) || !look_at_list(m, lengths, ms)) return false;
    std::vector<CoveredPart<T>> parts;
    Lengths sets;
    for (std::size_t i = 0; i < lengths.size(); ++i) {
      const Array numbers = array(layouts[i], "layouts");
      parts.push_back({lengths[i], model.at<T>(i), grads[i], ms[i], nullptr,
                       read_layout(elements<const std::int64_t>(numbers, "layouts"), numbers.numel, lengths[i])});
      sets.push_back(parts.back().layout.mu_size);
    }
    if (!look_at_list(mu, sets, mus)) return false;
    for (std::size_t i = 0; i < parts.size(); ++i) parts[i].mu = mus[i];
    const ClientNumbers numbers = client_numbers(n);
    const int team = threads();
    py::gil_scoped_release release;
    covered_parts<T>(DirectionFormula(formula), CoverForm(cover), parts, {scale, weight_decay}, numbers, step,
                     root_scale, team);
    return true;
  });
}

template <class T>
bool look_at_moved(const Model& model, const py::list& grad, py::handle grad_prev, std::vector<MovedPart<T>>& parts) {
  const Lengths& lengths = model.lengths;
  std::vector<T*> previous;
  std::vector<const T*> grads;
  if (!look_at_list(grad, lengths, grads) || !look_at_list(grad_prev, lengths, previous)) return false;
  for (std::size_t i = 0; i < lengths.size(); ++i) parts.push_back({lengths[i], model.at<T>(i), grads[i], previous[i]});
  return true;
}

// None where the arrays are unusual.
py::object bind_squares_of_parts(const py::list& x, const py::list& grad, py::handle grad_prev, double scale,
                                 double weight_decay) {
  const Model model(x);
  return for_dtype(model.dtype, py::object(py::none()), [&](auto zero) -> py::object {
    std::vector<MovedPart<decltype(zero)>> parts;
    if (!look_at_moved(model, grad, grad_prev, parts)) return py::none();
    const int team = threads();
    double sum;
    {
      py::gil_scoped_release release;
      sum = squares_of_parts(parts, {scale, weight_decay}, team);
    }
    return py::float_(sum);
  });
}

py::object bind_move_parts(const py::list& x, const py::list& grad, double scale, double weight_decay, double step,
                           bool measured) {
  const Model model(x);
  return for_dtype(model.dtype, py::object(py::none()), [&](auto zero) -> py::object {
    std::vector<MovedPart<decltype(zero)>> parts;
    if (!look_at_moved(model, grad, py::none(), parts)) return py::none();
    const int team = threads();
    double sum;
    {
      py::gil_scoped_release release;
      sum = move_parts(parts, {scale, weight_decay}, step, measured, team);
    }
    return py::float_(sum);
  });
}

}  // namespace

void bind_parts(py::module_& module) {
  module.def("gradient_parts", bind_gradient_parts);
  module.def("covered_parts", bind_covered_parts);
  module.def("squares_of_parts", bind_squares_of_parts);
  module.def("move_parts", bind_move_parts);
}

}  // namespace fastfed
