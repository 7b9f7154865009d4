#include "bind/arrays.h"

#include <cstring>

#include "bind/dlpack.h"

namespace fastfed {

namespace {

// ---- DLPack ---------------------------------------------------------------------------------------------------------

const dlpack::ExchangeApi* api_in(PyTypeObject* type) noexcept {
  PyObject* capsule = PyObject_GetAttrString(reinterpret_cast<PyObject*>(type), "__dlpack_c_exchange_api__");
  const void* held = capsule ? PyCapsule_GetPointer(capsule, dlpack::kCapsule) : nullptr;
  Py_XDECREF(capsule);
  if (!held) PyErr_Clear();
  const auto* api = static_cast<const dlpack::ExchangeApi*>(held);
  while (api && api->version.major > dlpack::kMajor) api = api->older;
  return api && api->version.major == dlpack::kMajor && api->look ? api : nullptr;
}

// Asking a type takes longer than a small step, so answers are kept: a program has few types of arrays.
const dlpack::ExchangeApi* api_of(PyTypeObject* type) noexcept {
  struct Known {
    PyTypeObject* type;
    const dlpack::ExchangeApi* api;
  };
  constexpr int kPlaces = 8;
  static Known known[kPlaces];  // under the GIL
  static int next = 0;
  for (const Known& one : known)
    if (one.type == type) return one.api;
  Known& place = known[next++ % kPlaces];
  Py_INCREF(type);  // a type that is gone could leave its address to another
  Py_XDECREF(place.type);
  place = {type, api_in(type)};
  return place.api;
}

Dtype dtype_of(dlpack::Type type) noexcept {
  if (type.lanes != 1) return Dtype::kOther;
  const auto is = [&](dlpack::Code code, int bits) { return type.code == code && type.bits == bits; };
  if (is(dlpack::kFloat, 32)) return Dtype::kFloat;
  if (is(dlpack::kFloat, 64)) return Dtype::kDouble;
  if (is(dlpack::kInt, 64)) return Dtype::kLong;
  if (is(dlpack::kFloat, 16)) return Dtype::kHalf;
  if (is(dlpack::kBfloat, 16)) return Dtype::kBfloat16;
  if (is(dlpack::kInt, 32)) return Dtype::kInt;
  if (is(dlpack::kUnsigned, 8)) return Dtype::kByte;
  if (is(dlpack::kBool, 8)) return Dtype::kBool;
  return Dtype::kOther;
}

bool look_by_dlpack(const dlpack::ExchangeApi& api, PyObject* object, Array& found) noexcept {
  dlpack::Tensor t;
  if (api.look(object, &t) != 0) {
    PyErr_Clear();
    return false;
  }
  std::int64_t numel = 1;
  bool contiguous = true;
  for (int axis = t.ndim; axis-- > 0;) {
    if (t.strides && t.shape[axis] != 1 && t.strides[axis] != numel) contiguous = false;
    numel *= t.shape[axis];
  }
  found.data = static_cast<char*>(t.data) + t.byte_offset;
  found.numel = numel;
  found.bytes = numel * t.dtype.bits / 8;
  found.dim = t.ndim;
  found.first = t.ndim ? t.shape[0] : 1;
  found.last = t.ndim ? t.shape[t.ndim - 1] : 1;
  found.dtype = dtype_of(t.dtype);
  found.on_cpu = t.device.type == dlpack::kCpu;
  found.contiguous = contiguous || numel == 0;
  found.writable = true;  // a type that lends its memory this way has no other word for it
  return true;
}

// ---- the buffer protocol --------------------------------------------------------------------------------------------

Dtype dtype_of(const char* format, Py_ssize_t size) noexcept {
  if (!format) return size == 1 ? Dtype::kByte : Dtype::kOther;
  if (*format == '@' || *format == '=') ++format;
  if (std::strlen(format) != 1) return Dtype::kOther;
  switch (*format) {
    case 'f':
      return Dtype::kFloat;
    case 'd':
      return Dtype::kDouble;
    case 'e':
      return Dtype::kHalf;
    case 'l':
    case 'q':
      return size == 8 ? Dtype::kLong : Dtype::kOther;
    case 'i':
      return size == 4 ? Dtype::kInt : Dtype::kOther;
    case 'B':
      return Dtype::kByte;
    case '?':
      return Dtype::kBool;
    default:
      return Dtype::kOther;
  }
}

bool look_by_buffer(PyObject* object, Array& found) noexcept {
  Py_buffer b;
  if (!PyObject_CheckBuffer(object) || PyObject_GetBuffer(object, &b, PyBUF_STRIDES | PyBUF_FORMAT) != 0) {
    PyErr_Clear();
    return false;
  }
  found.data = static_cast<char*>(b.buf);
  found.bytes = b.len;
  found.numel = b.itemsize ? b.len / b.itemsize : 0;
  found.dim = b.ndim;
  found.first = b.ndim ? b.shape[0] : 1;
  found.last = b.ndim ? b.shape[b.ndim - 1] : 1;
  found.dtype = dtype_of(b.format, b.itemsize);
  found.on_cpu = true;
  found.contiguous = PyBuffer_IsContiguous(&b, 'C');
  found.writable = !b.readonly;
  PyBuffer_Release(&b);  // the object stays, and with it its memory: nothing resizes an array while a kernel runs on it
  return true;
}

}  // namespace

bool look_at_tensor(py::handle object, Array& found) noexcept {
  const dlpack::ExchangeApi* api = api_of(Py_TYPE(object.ptr()));
  return api && look_by_dlpack(*api, object.ptr(), found);
}

bool look(py::handle object, Array& found) noexcept {
  return look_at_tensor(object, found) || look_by_buffer(object.ptr(), found);
}

bool requires_grad(py::handle object) noexcept {
  static PyObject* const name = PyUnicode_InternFromString("requires_grad");
  PyObject* answer = PyObject_GetAttr(object.ptr(), name);
  if (!answer) {
    PyErr_Clear();
    return false;  // an array of a library without derivatives
  }
  const bool is = answer != Py_False;
  Py_DECREF(answer);
  return is;
}

}  // namespace fastfed
