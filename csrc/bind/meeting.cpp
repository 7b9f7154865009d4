// Waiting for other processes.
#include "kernels/meeting.h"
#include "bind/arrays.h"
#include "bind/module.h"

namespace fastfed {

namespace {

bool bind_meet(py::handle counters, int rank, int count, std::int64_t number, double seconds) {
  FF_REQUIRE(count > 0 && rank >= 0 && rank < count, "rank", "below the number of processes");
  std::int64_t* numbers = data<std::int64_t>(counters, "counters", count * kCounterApart);
  py::gil_scoped_release release;
  return meet(numbers, rank, count, number, seconds);
}

}  // namespace

void bind_meeting(py::module_& module) {
  module.def("meet", bind_meet);
  module.attr("counter_apart") = kCounterApart;
}

}  // namespace fastfed
