#include "simd/library.h"

#include <dlfcn.h>

#include <initializer_list>

namespace fastfed {

namespace {

struct Library {
  Sgemm* sgemm = nullptr;
  int (*set_threads_here)(int) = nullptr;  // MKL's, for the calling thread; returns the former number
};

Library find() {
  for (const char* name : {"libtorch_cpu.so", "libtorch_cpu.dylib"})
    if (void* torch = dlopen(name, RTLD_LAZY | RTLD_NOLOAD))
      return {reinterpret_cast<Sgemm*>(dlsym(torch, "sgemm_")),
              reinterpret_cast<int (*)(int)>(dlsym(torch, "MKL_Set_Num_Threads_Local"))};
  return {};
}

const Library& library() {
  static const Library found = find();  // once: the bits of a product do not change while a process runs
  return found;
}

}  // namespace

Sgemm* library_sgemm() { return library().sgemm; }

LibraryOnOneThread::LibraryOnOneThread() {
  if (library().set_threads_here) before_ = library().set_threads_here(1);
}

LibraryOnOneThread::~LibraryOnOneThread() {
  if (library().set_threads_here) library().set_threads_here(before_);
}

}  // namespace fastfed
