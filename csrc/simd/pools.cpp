// Which of the pooling loops run: those of the SIMD level in use.
#include "simd/pools.h"

#include <cstring>

#include "simd/simd.h"

namespace fastfed {

const Pools& pools_scalar();
#if FASTFED_X86
const Pools& pools_avx2();
const Pools& pools_avx512();
#endif

const Pools& pools() {
  static const Pools& chosen = []() -> const Pools& {
#if FASTFED_X86
    const char* level = blocks<float>().name;
    if (std::strcmp(level, "avx512") == 0) return pools_avx512();
    if (std::strcmp(level, "avx2") == 0) return pools_avx2();
#endif
    return pools_scalar();
  }();
  return chosen;
}

}  // namespace fastfed
