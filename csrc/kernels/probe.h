// The streaming bound: how fast this machine reads k arrays and updates j arrays in place.
#pragma once

#include <cstdint>
#include <vector>

namespace fastfed {

void stream_probe(std::int64_t d, const std::vector<const float*>& reads, const std::vector<float*>& updates,
                  int threads);

}  // namespace fastfed
