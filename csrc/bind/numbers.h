// The numbers of a step from Python: tuples of kernels/table.py. Their fields are those of the lists that the structs
// here are made from, in the same order; kernels/extension.py compares the names when FastFed is imported.
#pragma once

#include <string>
#include <vector>

#include "bind/arrays.h"
#include "kernels/client_step.h"

namespace fastfed {

using Names = std::vector<std::string>;

#define FF_NAME(Type, name) #name,
inline const Names kClientNumberNames = {FF_CLIENT_NUMBERS(FF_NAME)};
#undef FF_NAME
// Of a server's step the last three are no numbers of the formula: of_delta picks a variant, the others are Python's.
#define FF_NAME(name) #name,
inline const Names kServerNumberNames = {FF_SERVER_NUMBERS(FF_NAME) "of_delta", "bias_correction",
                                         "tau_joins_corrected"};
#undef FF_NAME

// Reads a tuple from left to right; None is 0.
class NumberReader {
 public:
  NumberReader(const py::tuple& numbers, const Names& names) : numbers_(numbers) {
    FF_REQUIRE(numbers.size() == names.size(), "numbers", std::to_string(names.size()) + " numbers");
  }

  double next() {
    PyObject* item = PyTuple_GET_ITEM(numbers_.ptr(), at_++);
    if (item == Py_None) return 0.0;
    const double value = PyFloat_AsDouble(item);
    if (value == -1.0 && PyErr_Occurred()) throw py::error_already_set();
    return value;
  }

 private:
  const py::tuple& numbers_;
  py::ssize_t at_ = 0;
};

inline ClientNumbers client_numbers(const py::tuple& given) {
  NumberReader reader(given, kClientNumberNames);
  ClientNumbers numbers;
#define FF_READ(Type, name) numbers.name = Type(reader.next());
  FF_CLIENT_NUMBERS(FF_READ)
#undef FF_READ
  FF_REQUIRE(numbers.delay >= 1, "delay", "at least 1");
  return numbers;
}

template <class T> struct ServerStepNumbers {
  ServerNumbers<T> numbers;
  bool of_delta;
};

template <class T> ServerStepNumbers<T> server_numbers(const py::tuple& given) {
  NumberReader reader(given, kServerNumberNames);
  ServerStepNumbers<T> step;
#define FF_READ(name) step.numbers.name = T(reader.next());
  FF_SERVER_NUMBERS(FF_READ)
#undef FF_READ
  step.of_delta = reader.next() != 0;
  return step;
}

}  // namespace fastfed
