// The numbers of a client step from Python (kernels/table.py: ClientNumbers).
#pragma once

#include "bind/tensors.h"
#include "kernels/client_step.h"

namespace fastfed {

inline double number(const py::tuple& numbers, py::ssize_t index) {
  PyObject* item = PyTuple_GET_ITEM(numbers.ptr(), index);
  if (item == Py_None) return 0.0;
  const double value = PyFloat_AsDouble(item);
  if (value == -1.0 && PyErr_Occurred()) throw py::error_already_set();
  return value;
}

inline ClientNumbers client_numbers(const py::tuple& n) {
  FF_REQUIRE(n.size() == 20, "numbers", "ClientNumbers");
  const auto delay = std::int64_t(number(n, 7));
  FF_REQUIRE(delay >= 1, "delay", "at least 1");
  return {number(n, 0),  number(n, 1),       number(n, 2),  number(n, 3),  number(n, 4),  number(n, 5),  number(n, 6),
          delay,         number(n, 8),       number(n, 9),  number(n, 10), number(n, 11), number(n, 12), number(n, 13),
          number(n, 14), number(n, 15) != 0, number(n, 16), number(n, 17), number(n, 18), number(n, 19)};
}

}  // namespace fastfed
