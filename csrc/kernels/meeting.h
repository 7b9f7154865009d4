// Processes of one machine that wait for each other: each has a counter in memory that all of them see.
#pragma once

#include <cstdint>

namespace fastfed {

constexpr std::int64_t kCounterApart = 8;  // a line of the cache each

// Says in `counters` (count * kCounterApart,) that process `rank` of `count` has come to its meeting `number` (1, 2,
// ...), and waits until all have: what each wrote before is seen by all then. False if that takes longer than
// `seconds`; the same meeting may be asked for again.
bool meet(std::int64_t* counters, int rank, int count, std::int64_t number, double seconds);

}  // namespace fastfed
