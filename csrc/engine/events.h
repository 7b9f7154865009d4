// The loop of the event clock (fastfed/plan/events.py has its rules in words): which client starts when, from which
// model, and whose updates arrive together. fastfed/plan/event_loop.py is its twin for machines without this extension.
#pragma once

#include <cstdint>

namespace fastfed {

// How a run ends; what a queue counts; clients counted together: fastfed/plan/event_state.py.
enum EventsEnd { kCut, kFull, kUnfinished, kUndrawn };
// clang-format off
enum EventCount {
  kVersion, kEvents, kDropped, kLost, kStale, kDiscarded, kStarts, kWaves,
  kInFlight, kBuffered, kReady, kOpened, kClosed, kWanted, kDrawn, kEventCounts
};
// clang-format on
constexpr std::int64_t kEventGroup = 64;

// Settings first, then what changes; arrays as in event_state.py.
struct EventState {
  std::int64_t clients, nodes, starts;  // sizes: of seconds, of the tree, of draws
  const double *seconds, *further;      // further: null where no epochs are drawn
  std::int64_t most_epochs;
  const double* begin;  // null where all are always available
  const std::int32_t* order;
  double length, period;
  std::int64_t concurrency, buffer, max_age;
  bool waves;
  double dropout;

  double* now;
  std::int64_t* counts;
  std::uint8_t* status;
  const float *draws, *epoch_draws;
  std::int64_t* epochs;
  std::int32_t* tree;
  double* due;
  std::int64_t *client, *started, *arrived, *arrived_version;
};

// Events until the buffer is full, the next would be later than `until`, or the budget of turns is spent.
EventsEnd run_events(const EventState& q, double until, std::int64_t budget);
// The server has taken a step.
void commit_events(const EventState& q);
// Finds everybody's status at the time that it is, from who is in flight and in the buffer.
void settle_events(const EventState& q);

}  // namespace fastfed
