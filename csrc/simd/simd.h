// Which SIMD level the inner loops run at: the best that was compiled and that this processor has.
#pragma once

#include <string>
#include <vector>

#include "simd/vector_loops.h"

namespace fastfed {

// DO(level, ...) for every level that is compiled, slowest first. A file of loops is compiled once for each of them,
// with FF_LEVEL naming it.
#if FASTFED_X86
#define FF_LEVELS(DO, ...) DO(scalar, __VA_ARGS__) DO(avx2, __VA_ARGS__) DO(avx512, __VA_ARGS__)
#else
#define FF_LEVELS(DO, ...) DO(scalar, __VA_ARGS__)
#endif

// The number of the level in use, in the order of FF_LEVELS. FASTFED_SIMD=scalar|avx2|avx512 asks for one; one that
// cannot run here is an error.
int simd_level();
std::vector<std::string> compiled_levels();

// Defines name_in_use(): the table of loops that name_scalar(), name_avx2() or name_avx512() gives at the level in use.
#define FF_BY_LEVEL(Loops, name)                                                          \
  FF_LEVELS(FF_DECLARE_AT_LEVEL, Loops, name)                                             \
  static const Loops& name##_in_use() {                                                   \
    static const Loops& (*const by_level[])() = {FF_LEVELS(FF_POINTER_AT_LEVEL, , name)}; \
    static const Loops& loops = by_level[simd_level()]();                                 \
    return loops;                                                                         \
  }
#define FF_DECLARE_AT_LEVEL(level, Loops, name) const Loops& name##_##level();
#define FF_POINTER_AT_LEVEL(level, nothing, name) name##_##level,

// The loops for float or double.
template <class T> const VectorLoops<T>& vector_loops();

}  // namespace fastfed
