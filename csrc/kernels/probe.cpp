// The probe shares chunks among threads exactly as the ops do, so that only the arithmetic differs.
#include "kernels/probe.h"

#include "kernels/parallel.h"
#include "simd/simd.h"

namespace fastfed {

void stream_probe(std::int64_t d, const std::vector<const float*>& reads, const std::vector<float*>& updates,
                  int threads) {
  const auto probe = vector_loops<float>().probe;
  for_chunks(d, threads, [&](std::int64_t begin, std::int64_t n) {
    probe(begin, begin + n, reads.data(), int(reads.size()), updates.data(), int(updates.size()));
  });
}

}  // namespace fastfed
