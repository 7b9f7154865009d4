// Where the seconds of a round's threads go, for who asks (fastfed/train/profile.py). Who does not has null pointers
// for watches: a branch per layer.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <mutex>
#include <vector>

namespace fastfed {

// What threads do besides the work of layers, in the order of a round.
#define FF_DUTIES(DO)                                                            \
  DO(deal)      /* a start model as the engine has it; who is trained by whom */ \
  DO(prepare)   /* threads begin, and fetch their memory */                      \
  DO(begin)     /* a client begins: its state, its model */                      \
  DO(read)      /* examples become a batch */                                    \
  DO(loss)      /* with its gradient */                                          \
  DO(rule)      /* the update, where it is not the layers' */                    \
  DO(hand_over) /* the delta joins a sum; the start model is back */             \
  DO(fold)      /* sums join each other */                                       \
  DO(wait)      /* for the thread that ends last */                              \
  DO(write)     /* the sum of all, as the caller has it */
#define FF_DUTY(name) name,
enum class Duty : std::size_t { FF_DUTIES(FF_DUTY) kCount };
#undef FF_DUTY

using LapClock = std::chrono::steady_clock;
inline double seconds_since(LapClock::time_point then) {
  return std::chrono::duration<double>(LapClock::now() - then).count();
}

// A round's seconds, added up over its threads: a place for each direction of each layer, then one for each duty.
class RoundSeconds {
 public:
  static std::size_t size(std::size_t layers) { return 2 * layers + std::size_t(Duty::kCount); }

  // They are added to what is in `to`, (size,).
  RoundSeconds(std::size_t layers, double* to) : layers_(layers), to_(to), last_(LapClock::now()) {}

  static std::size_t forward(std::size_t layer) { return 2 * layer; }
  static std::size_t backward(std::size_t layer) { return 2 * layer + 1; }
  std::size_t of(Duty duty) const { return 2 * layers_ + std::size_t(duty); }
  std::size_t size() const { return size(layers_); }

  // What comes before and after the work of threads, of which there are or will be so many.
  void lap(Duty duty, int threads) {
    to_[of(duty)] += threads * seconds_since(last_);
    last_ = LapClock::now();
  }
  // When the threads have ended: what is left of their time was waiting.
  void wait(int threads) {
    to_[of(Duty::wait)] += threads * seconds_since(last_) - worked_;
    last_ = LapClock::now();
    worked_ = 0;
  }
  void add(std::size_t place, double seconds) {
    const std::lock_guard<std::mutex> lock(mutex_);
    to_[place] += seconds;
    worked_ += seconds;
  }
  LapClock::time_point last() const { return last_; }

 private:
  std::mutex mutex_;
  std::size_t layers_;
  double *to_, worked_ = 0;
  LapClock::time_point last_;
};

// One thread's watch: from one lap to the next all time is one place's.
class Laps {
 public:
  explicit Laps(RoundSeconds& round) : round_(round), seconds_(round.size()), last_(round.last()) {}
  ~Laps() {
    for (std::size_t place = 0; place < seconds_.size(); ++place)
      if (seconds_[place] > 0) round_.add(place, seconds_[place]);
  }
  Laps(const Laps&) = delete;
  Laps& operator=(const Laps&) = delete;

  void forward(std::size_t layer) { end(round_.forward(layer)); }
  void backward(std::size_t layer) { end(round_.backward(layer)); }
  void note(Duty duty) { end(round_.of(duty)); }

 private:
  void end(std::size_t place) {
    const auto now = LapClock::now();
    seconds_[place] += std::chrono::duration<double>(now - last_).count();
    last_ = now;
  }

  RoundSeconds& round_;
  std::vector<double> seconds_;
  LapClock::time_point last_;
};

inline void lap(Laps* laps, Duty duty) {
  if (laps) laps->note(duty);
}
inline void lap_forward(Laps* laps, std::size_t layer) {
  if (laps) laps->forward(layer);
}
inline void lap_backward(Laps* laps, std::size_t layer) {
  if (laps) laps->backward(layer);
}

}  // namespace fastfed
