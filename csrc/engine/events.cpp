#include "engine/events.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace fastfed {
namespace {

using Size = std::int64_t;

// Bits of a client's status: in flight or in the buffer; available. Ready to start: kOpen alone.
constexpr std::uint8_t kBusy = 1, kOpen = 2;
// In place of the version of a client that will not report, or whose window will close first.
constexpr Size kDrops = -1, kLoses = -2;
constexpr double kNever = std::numeric_limits<double>::infinity();

Size floor_quotient(Size a, Size b) { return a / b - (a % b < 0); }
Size floor_rest(Size a, Size b) { return a - floor_quotient(a, b) * b; }

// A number in [0, 1) with 48 random bits, of two with 24: those alone would favour some of a million clients.
double fraction(float coarse, float fine) { return double(coarse) + double(fine) * 0x1p-24; }

// ---- who is ready: a count per group of clients, summed in a Fenwick tree ------------------------------------------

void set_status(const EventState& q, Size client, std::uint8_t bit, bool on) {
  const std::uint8_t before = q.status[client], after = std::uint8_t(on ? before | bit : before & ~bit);
  q.status[client] = after;
  const int change = int(after == kOpen) - int(before == kOpen);
  if (change == 0) return;
  q.counts[kReady] += change;
  for (Size node = client / kEventGroup + 1; node < q.nodes; node += node & -node) q.tree[node] += change;
}

// The client with exactly `rank` ready ones of smaller id.
Size ready_client(const EventState& q, Size rank) {
  Size step = 1, group = 0;
  while (2 * step < q.nodes) step *= 2;
  for (; step > 0; step /= 2)
    if (group + step < q.nodes && q.tree[group + step] <= rank) {
      group += step;
      rank -= q.tree[group];
    }
  Size client = group * kEventGroup;
  while (rank > 0 || q.status[client] != kOpen) {
    rank -= q.status[client] == kOpen;
    ++client;
  }
  return client;
}

// ---- windows: opening and closing one after another, in the order of their beginnings ------------------------------

// When window number `turn` opens: the windows of a period are counted on from those of the period before.
double opening(const EventState& q, Size turn) {
  return q.begin[q.order[floor_rest(turn, q.clients)]] + double(floor_quotient(turn, q.clients)) * q.period;
}

// Opens and closes all windows up to now.
void turn_windows(const EventState& q) {
  while (q.begin) {
    const double opens = opening(q, q.counts[kOpened]), closes = opening(q, q.counts[kClosed]) + q.length;
    if (std::min(opens, closes) > q.now[0]) return;
    const bool close = closes <= opens;
    Size& turn = q.counts[close ? kClosed : kOpened];
    set_status(q, q.order[floor_rest(turn, q.clients)], kOpen, !close);
    ++turn;
  }
}

// When the window closes that is open now, the same number to the last bit as turn_windows has.
double closing(const EventState& q, Size client) {
  if (!q.begin) return kNever;
  const double begin = q.begin[client], now = q.now[0];
  double period = std::floor((now - begin) / q.period);
  if (begin + (period + 1) * q.period <= now) period += 1;  // the quotient was rounded
  if (begin + period * q.period > now) period -= 1;
  return begin + period * q.period + q.length;
}

// ---- those in flight: a binary heap by time, then client id --------------------------------------------------------

struct Flight {
  double due;
  Size client, started;
  bool before(const Flight& other) const { return due < other.due || (due == other.due && client < other.client); }
};

Flight flight(const EventState& q, Size place) { return {q.due[place], q.client[place], q.started[place]}; }
void put(const EventState& q, Size place, const Flight& one) {
  q.due[place] = one.due;
  q.client[place] = one.client;
  q.started[place] = one.started;
}

void push(const EventState& q, const Flight& one) {
  Size place = q.counts[kInFlight]++;
  while (place > 0) {
    const Size parent = (place - 1) / 2;
    if (!one.before(flight(q, parent))) break;
    put(q, place, flight(q, parent));
    place = parent;
  }
  put(q, place, one);
}

// Removes the first: the last one takes its place and sinks.
void pop(const EventState& q) {
  const Size last = --q.counts[kInFlight];
  const Flight one = flight(q, last);
  Size place = 0;
  for (Size child = 1; child < last; child = 2 * place + 1) {
    if (child + 1 < last && flight(q, child + 1).before(flight(q, child))) ++child;
    if (!flight(q, child).before(one)) break;
    put(q, place, flight(q, child));
    place = child;
  }
  put(q, place, one);
}

// ---- events --------------------------------------------------------------------------------------------------------

// The first client of the heap ends: its update goes to the buffer, or nowhere.
void end_first(const EventState& q) {
  const Flight one = flight(q, 0);
  pop(q);
  ++q.counts[kEvents];
  if (one.started == kDrops) {
    ++q.counts[kDropped];
  } else if (one.started == kLoses) {
    ++q.counts[kLost];
  } else if (q.max_age >= 0 && q.counts[kVersion] - one.started > q.max_age) {
    ++q.counts[kStale];
  } else {
    const Size place = q.counts[kBuffered]++;
    q.arrived[place] = one.client;
    q.arrived_version[place] = one.started;
    return;  // it stays busy
  }
  set_status(q, one.client, kBusy, false);
}

// Starts a client drawn uniformly among those ready; what will become of it is settled at once.
void start(const EventState& q, Size place) {
  const float* drawn = q.draws + 4 * place;
  const Size client = ready_client(q, Size(fraction(drawn[0], drawn[1]) * double(q.counts[kReady])));
  Flight one = {q.now[0] + q.seconds[client], client, q.counts[kVersion]};
  if (q.further) {
    const Size more = Size(double(q.epoch_draws[place]) * double(q.most_epochs));
    q.epochs[client] = 1 + more;
    one.due += double(more) * q.further[client];
  }
  const double closes = closing(q, client);
  if (closes < one.due) {
    one.due = closes;
    one.started = kLoses;
  } else if (fraction(drawn[2], drawn[3]) < q.dropout) {
    one.started = kDrops;
  }
  set_status(q, client, kBusy, true);
  push(q, one);
  ++q.counts[kStarts];
}

// Whether the random numbers of this portion of starts are there; they are wanted.
bool has_drawn(const EventState& q, Size portion) {
  q.counts[kWanted] = portion;
  return q.counts[kDrawn] == portion;
}

bool fill_wave(const EventState& q) {
  if (q.counts[kInFlight] > 0 || q.counts[kBuffered] > 0 || q.counts[kReady] == 0) return true;
  if (!has_drawn(q, q.counts[kWaves])) return false;
  const Size wave = std::min(q.concurrency, q.counts[kReady]);
  for (Size place = 0; place < wave; ++place) start(q, place);
  ++q.counts[kWaves];
  return true;
}

// Starts clients in all free slots while somebody is ready; false where random numbers must be drawn first.
bool fill(const EventState& q) {
  if (q.waves) return fill_wave(q);
  while (q.counts[kInFlight] < q.concurrency && q.counts[kReady] > 0) {
    const Size number = q.counts[kStarts];
    if (!has_drawn(q, number / q.starts)) return false;
    start(q, number % q.starts);
  }
  return true;
}

bool is_full(const EventState& q) {
  const Size buffered = q.counts[kBuffered];
  return buffered >= q.buffer || (q.waves && buffered > 0 && q.counts[kInFlight] == 0);
}

// When the next client ends, or a window opens that a free slot waits for.
double next_moment(const EventState& q) {
  const Size flying = q.counts[kInFlight];
  const double moment = flying > 0 ? q.due[0] : kNever;
  const bool waiting = q.waves ? flying == 0 && q.counts[kBuffered] == 0 : flying < q.concurrency;
  return waiting && q.begin ? std::min(moment, opening(q, q.counts[kOpened])) : moment;
}

}  // namespace

EventsEnd run_events(const EventState& q, double until, std::int64_t budget) {
  for (Size turn = 0; turn < budget; ++turn) {
    if (is_full(q)) return kFull;
    if (q.now[0] > until) return kCut;
    if (q.counts[kInFlight] > 0 && q.due[0] <= q.now[0]) {
      end_first(q);
      continue;
    }
    if (!fill(q)) return kUndrawn;
    const double moment = next_moment(q);
    if (moment > until) return kCut;
    q.now[0] = moment;
    turn_windows(q);
  }
  return kUnfinished;
}

void commit_events(const EventState& q) {
  for (Size place = 0; place < q.counts[kBuffered]; ++place) set_status(q, q.arrived[place], kBusy, false);
  q.counts[kBuffered] = 0;
  ++q.counts[kVersion];
  if (!q.waves) return;
  for (Size place = 0; place < q.counts[kInFlight]; ++place) set_status(q, q.client[place], kBusy, false);
  q.counts[kDiscarded] += q.counts[kInFlight];
  q.counts[kInFlight] = 0;
}

void settle_events(const EventState& q) {
  std::fill(q.tree, q.tree + q.nodes, 0);
  std::fill(q.status, q.status + q.clients, std::uint8_t(0));
  q.counts[kReady] = 0;
  q.counts[kDrawn] = -1;
  for (Size place = 0; place < q.counts[kInFlight]; ++place) q.status[q.client[place]] = kBusy;
  for (Size place = 0; place < q.counts[kBuffered]; ++place) q.status[q.arrived[place]] = kBusy;
  if (!q.begin) {
    for (Size client = 0; client < q.clients; ++client) set_status(q, client, kOpen, true);
    return;
  }
  // Whatever is open now has opened in this period or the one before; one more for the rounding.
  const Size turn = (Size(std::floor(q.now[0] / q.period)) - 2) * q.clients;
  q.counts[kOpened] = q.counts[kClosed] = turn;
  turn_windows(q);
}

}  // namespace fastfed
