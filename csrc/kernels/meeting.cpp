// Waiting for other processes: first in turns with whoever else wants the core, later asleep.
#include "kernels/meeting.h"

#include <chrono>
#include <thread>

namespace fastfed {
namespace {

using Clock = std::chrono::steady_clock;

// A core that has nothing to do falls asleep, and takes as long as a small round to come back: not for short waits.
constexpr std::chrono::milliseconds kAwake(10);
constexpr std::chrono::microseconds kNap(100);

}  // namespace

bool meet(std::int64_t* counters, int rank, int count, std::int64_t number, double seconds) {
  __atomic_store_n(counters + rank * kCounterApart, number, __ATOMIC_RELEASE);
  const auto begun = Clock::now();
  for (int other = 0; other < count; ++other)
    while (__atomic_load_n(counters + other * kCounterApart, __ATOMIC_ACQUIRE) < number) {
      const auto waited = Clock::now() - begun;
      if (waited > std::chrono::duration<double>(seconds)) return false;
      if (waited < kAwake)
        std::this_thread::yield();
      else
        std::this_thread::sleep_for(kNap);
    }
  return true;
}

}  // namespace fastfed
