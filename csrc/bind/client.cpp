// Client steps.
#include "bind/arrays.h"
#include "bind/module.h"
#include "bind/numbers.h"
#include "kernels/client_step.h"

namespace fastfed {

namespace {

template <class T> struct Rows {
  const T* data;
  bool shared;
};

// A vector per client, or one for all.
template <class T> Rows<T> rows_or_null(py::handle object, const char* name, std::int64_t clients, std::int64_t d) {
  if (object.is_none()) return {nullptr, false};
  const bool shared = array(object, name).dim == 1;
  return {data<const T>(object, name, shared ? d : clients * d), shared};
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

template <class T> void typed_client_step(const ClientArguments& a, const Array& x, const py::tuple& n) {
  FF_REQUIRE(x.dim == 1 || x.dim == 2, "x", "(d,) or (clients, d)");
  const std::int64_t clients = x.dim == 2 ? x.first : 1, d = x.last, all = clients * d;
  CoverLayout layout;
  if (a.cover != kNoCover) {
    const Array numbers = array(a.layout, "cover");
    layout = read_layout(data<const std::int64_t>(a.layout, "cover", numbers.numel), numbers.numel, d);
    FF_REQUIRE(array(a.mu, "state['mu']").dim == x.dim, "state['mu']", "of as many axes as x");
  }
  const bool loss_is_number = PyFloat_Check(a.loss.ptr());
  FF_REQUIRE(!loss_is_number || clients == 1, "loss", "one per client");
  const double one_loss = loss_is_number ? PyFloat_AS_DOUBLE(a.loss.ptr()) : 0.0;
  const double* loss = loss_is_number ? &one_loss : data_or_null<const double>(a.loss, "loss", clients);
  const Rows<T> anchor = rows_or_null<T>(a.anchor, "anchor", clients, d);
  const Rows<T> correction = rows_or_null<T>(a.correction, "correction", clients, d);
  const ClientVectors<T> vectors{clients,
                                 d,
                                 layout.mu_size,
                                 elements<T>(x, "x"),
                                 data<const T>(a.grad, "grad", all),
                                 data_or_null<T>(a.m, "state['m']", all),
                                 data_or_null<T>(a.v, "state['v']", all),
                                 data_or_null<T>(a.nu, "state['nu']", all),
                                 data_or_null<T>(a.mu, "state['mu']", clients * layout.mu_size),
                                 data_or_null<T>(a.grad_prev, "state['grad_prev']", all),
                                 data_or_null<const T>(a.previous_grad, "previous_grad", all),
                                 anchor.data,
                                 correction.data,
                                 anchor.shared,
                                 correction.shared};
  const ClientScalars scalars{data_or_null<std::int64_t>(a.step, "state['step']", clients),
                              data_or_null<std::int64_t>(a.refreshes, "state['refreshes']", clients),
                              data_or_null<double>(a.lr, "state['lr']", clients),
                              data_or_null<double>(a.theta, "state['theta']", clients),
                              data_or_null<double>(a.move, "state['move']", clients),
                              data_or_null<const double>(a.given_lr, "lr", clients),
                              loss,
                              data_or_null<const std::int64_t>(a.epoch, "epoch", clients),
                              data_or_null<const bool>(a.finished, "finished", clients)};
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
  const Array t = array(x, "x");
  if (t.dtype == Dtype::kDouble) return typed_client_step<double>(a, t, numbers);
  FF_REQUIRE(t.dtype == Dtype::kFloat, "x", "float32 or float64");
  typed_client_step<float>(a, t, numbers);
}

}  // namespace

void bind_client(py::module_& module) { module.def("client_step", bind_client_step); }

}  // namespace fastfed
