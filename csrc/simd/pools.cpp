// Which of the pooling loops run: those of the SIMD level in use.
#include "simd/pools.h"

#include "simd/simd.h"

namespace fastfed {

FF_BY_LEVEL(Pools, pools)

const Pools& pools() { return pools_in_use(); }

}  // namespace fastfed
