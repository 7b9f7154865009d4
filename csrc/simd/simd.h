// Which SIMD level the inner loops run at: the best that was compiled and that this processor has.
#pragma once

#include <string>
#include <vector>

#include "simd/blocks.h"

namespace fastfed {

// The loops for float or double. FASTFED_SIMD=scalar|avx2|avx512 asks for a level; one that cannot run here is an
// error.
template <class T> const Blocks<T>& blocks();

std::vector<std::string> compiled_levels();

}  // namespace fastfed
