// DLPack's C ABI, version 1: the few structs by which array libraries lend each other memory. Declared here and not
// taken from a library, so that the extension is compiled against none. The layouts are those of the standard
// (https://dmlc.github.io/dlpack/latest/c_api.html); only what we read has names of ours.
#pragma once

#include <cstdint>

namespace fastfed::dlpack {

constexpr std::uint32_t kMajor = 1;

struct Version {
  std::uint32_t major, minor;
};

constexpr std::int32_t kCpu = 1;
struct Device {
  std::int32_t type, id;
};

enum Code : std::uint8_t { kInt = 0, kUnsigned = 1, kFloat = 2, kBfloat = 4, kBool = 6 };
struct Type {
  std::uint8_t code, bits;
  std::uint16_t lanes;
};

struct Tensor {
  void* data;
  Device device;
  std::int32_t ndim;
  Type dtype;
  const std::int64_t *shape, *strides;  // strides: in elements; null where dense
  std::uint64_t byte_offset;
};

// What a type's attribute __dlpack_c_exchange_api__ holds, in a capsule of this name.
constexpr const char* kCapsule = "dlpack_exchange_api";
struct ExchangeApi {
  Version version;
  const ExchangeApi* older;  // for consumers of a smaller major version
  void *allocate, *lend, *adopt;
  // Fills a Tensor that borrows the object's memory, shape and strides; -1 with a Python error. May be null.
  int (*look)(void* object, Tensor* out);
  void* current_stream;
};

}  // namespace fastfed::dlpack
