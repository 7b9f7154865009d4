// VectorLoops of coordinates, sorted by the threads that they are shared among.
#include "kernels/trimmed_mean.h"

#include <vector>

#include "kernels/aligned.h"
#include "kernels/parallel.h"
#include "simd/simd.h"

namespace fastfed {
namespace {

constexpr std::int64_t kKeys = 65536;  // of a run, at home in the second-level cache; and worth a thread

// Coordinates of a run: as long as the cache allows, and whole lines.
std::int64_t length_of_run(std::int64_t d, std::int64_t clients) {
  const std::int64_t wanted = std::min({kMostTrimmed, kKeys / clients, d});
  return std::max(kLineElements, wanted / kLineElements * kLineElements);
}

}  // namespace

template <class T>
void trimmed_mean(std::int64_t d, const void* deltas, DeltaType type, std::int64_t clients, std::int64_t trim, T* out,
                  int threads) {
  const auto mean = vector_loops<T>().trim[type];
  const std::int64_t element = std::int64_t(type == kSame ? sizeof(T) : sizeof(Half));
  const std::int64_t length = length_of_run(d, clients), tasks = (d + length - 1) / length;
  const std::int64_t team = std::min<std::int64_t>(threads, std::min(tasks, 1 + clients * d / kKeys));
  std::vector<AlignedArray<SortKey<T>>> keys;
  for (std::int64_t thread = 0; thread < team; ++thread) keys.emplace_back(clients * length);
  for_tasks(tasks, int(team), [&](std::int64_t task, int thread) {
    const std::int64_t begin = task * length;
    mean(std::min(length, d - begin), out + begin, static_cast<const char*>(deltas) + begin * element, d, clients, trim,
         keys[std::size_t(thread)].data());
  });
}

#define FF_INSTANTIATE(T) \
  template void trimmed_mean<T>(std::int64_t, const void*, DeltaType, std::int64_t, std::int64_t, T*, int);
FF_INSTANTIATE(float)
FF_INSTANTIATE(double)

}  // namespace fastfed
