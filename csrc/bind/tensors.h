// Tensors from Python, as the bindings take them: only what memory safety needs is checked here.
#pragma once

#include <pybind11/pybind11.h>
#include <torch/csrc/autograd/python_variable.h>

#include <stdexcept>
#include <string>

namespace fastfed {

namespace py = pybind11;

#define FF_REQUIRE(condition, name, words)                                                   \
  do {                                                                                       \
    if (!(condition)) throw std::invalid_argument(std::string(name) + ": must be " + words); \
  } while (0)

template <class T> constexpr at::ScalarType kDtype = at::kFloat;
template <> inline constexpr at::ScalarType kDtype<double> = at::kDouble;
template <> inline constexpr at::ScalarType kDtype<std::int64_t> = at::kLong;
template <> inline constexpr at::ScalarType kDtype<std::int32_t> = at::kInt;
template <> inline constexpr at::ScalarType kDtype<std::uint8_t> = at::kByte;
template <> inline constexpr at::ScalarType kDtype<bool> = at::kBool;

inline const at::Tensor& tensor(py::handle object, const char* name) {
  FF_REQUIRE(THPVariable_Check(object.ptr()), name, "a tensor");
  const at::Tensor& t = THPVariable_Unpack(object.ptr());
  FF_REQUIRE(t.is_cpu() && t.is_contiguous(), name, "a contiguous tensor on the CPU");
  return t;
}

// The elements of a tensor of exactly `numel` Ts.
template <class T> T* data(py::handle object, const char* name, std::int64_t numel) {
  const at::Tensor& t = tensor(object, name);
  FF_REQUIRE(t.scalar_type() == kDtype<T>, name, "of another dtype");
  FF_REQUIRE(t.numel() == numel, name, std::to_string(numel) + " elements long");
  return static_cast<T*>(t.data_ptr());
}

template <class T> T* data_or_null(py::handle object, const char* name, std::int64_t numel) {
  return object.is_none() ? nullptr : data<T>(object, name, numel);
}

// One vector (d,) is one row.
struct RowCount {
  std::int64_t clients, d;
};
inline RowCount rows_of(const at::Tensor& t, const char* name) {
  FF_REQUIRE(t.dim() == 1 || t.dim() == 2, name, "(d,) or (clients, d)");
  return {t.dim() == 2 ? t.size(0) : 1, t.size(-1)};
}

}  // namespace fastfed
