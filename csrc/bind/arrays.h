// Arrays from Python, as the bindings take them: torch's and whatever else lends its memory by DLPack's exchange API,
// or by Python's buffer protocol (NumPy). Only what memory safety needs is checked here. No library's header is
// included: one build serves every version of torch, and none.
#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>
#include <stdexcept>
#include <string>
#include <type_traits>

namespace fastfed {

namespace py = pybind11;

#define FF_REQUIRE(condition, name, words)                                                   \
  do {                                                                                       \
    if (!(condition)) throw std::invalid_argument(std::string(name) + ": must be " + words); \
  } while (0)

enum class Dtype : std::uint8_t { kOther, kFloat, kDouble, kHalf, kBfloat16, kLong, kInt, kByte, kBool };

template <class T> constexpr Dtype kDtype = Dtype::kOther;
template <> inline constexpr Dtype kDtype<float> = Dtype::kFloat;
template <> inline constexpr Dtype kDtype<double> = Dtype::kDouble;
template <> inline constexpr Dtype kDtype<std::int64_t> = Dtype::kLong;
template <> inline constexpr Dtype kDtype<std::int32_t> = Dtype::kInt;
template <> inline constexpr Dtype kDtype<std::uint8_t> = Dtype::kByte;
template <> inline constexpr Dtype kDtype<bool> = Dtype::kBool;

// An array's memory, borrowed: whoever calls us holds the object.
struct Array {
  char* data;
  std::int64_t numel, bytes;
  std::int64_t first, last;  // sizes of the first and the last axis; 1 without axes
  int dim;
  Dtype dtype;
  bool on_cpu, contiguous, writable;

  bool same_shape(const Array& other) const {  // of two arrays of which one has at most two axes
    return dim == other.dim && first == other.first && last == other.last && numel == other.numel;
  }
};

// Whether the object lends its memory; if not, no Python error is left behind. A tensor does so by the exchange API.
bool look(py::handle object, Array& found) noexcept;
bool look_at_tensor(py::handle object, Array& found) noexcept;
// Whether it takes part in a graph of automatic derivatives, in which memory is not written behind the library's back.
bool requires_grad(py::handle object) noexcept;

inline Array array(py::handle object, const char* name) {
  Array found;
  FF_REQUIRE(look(object, found), name, "an array or tensor");
  FF_REQUIRE(found.on_cpu && found.contiguous, name, "contiguous and on the CPU");
  return found;
}

// The elements of an array, which must be Ts; it must be writable unless T is const.
template <class T> T* elements(const Array& a, const char* name) {
  FF_REQUIRE(a.dtype == kDtype<std::remove_const_t<T>>, name, "of another dtype");
  FF_REQUIRE(std::is_const_v<T> || a.writable, name, "writable");
  return reinterpret_cast<T*>(a.data);
}

// The elements of an array of exactly `numel` Ts.
template <class T> T* data(py::handle object, const char* name, std::int64_t numel) {
  const Array a = array(object, name);
  FF_REQUIRE(a.numel == numel, name, std::to_string(numel) + " elements long");
  return elements<T>(a, name);
}

template <class T> T* data_or_null(py::handle object, const char* name, std::int64_t numel) {
  return object.is_none() ? nullptr : data<T>(object, name, numel);
}

// One vector (d,) is one row.
struct RowCount {
  std::int64_t clients, d;
};
inline RowCount rows_of(const Array& a, const char* name) {
  FF_REQUIRE(a.dim == 1 || a.dim == 2, name, "(d,) or (clients, d)");
  return {a.dim == 2 ? a.first : 1, a.last};
}

}  // namespace fastfed
