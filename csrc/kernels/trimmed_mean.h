// The mean of deltas without the extremes of every coordinate, run by run of coordinates.
#pragma once

#include <cstdint>

#include "simd/vector_loops.h"

namespace fastfed {

// out (d,) of deltas (clients, d), 2 trim < clients: the mean of what lies between the `trim` smallest and the `trim`
// largest of a coordinate, added up in the order of clients. A coordinate that has a NaN is NaN.
template <class T>
void trimmed_mean(std::int64_t d, const void* deltas, DeltaType type, std::int64_t clients, std::int64_t trim, T* out,
                  int threads);

}  // namespace fastfed
