// Server steps: the rule's loop over each chunk, fed from memory or from a span that a weighted sum has just filled.
#include "kernels/server_step.h"

#include "kernels/parallel.h"
#include "simd/simd.h"

namespace fastfed {
namespace {

// Elements of a weighted sum that stay near until the rule has used them: runs long enough for every row's stream.
constexpr std::int64_t kSumSpan = 8192;

template <class T> T* at(T* vector, std::int64_t offset) { return vector ? vector + offset : nullptr; }

std::int64_t bytes_of(DeltaType type, std::size_t same) { return std::int64_t(type == kSame ? same : sizeof(Half)); }

// fill(begin, n, span) puts the delta of n elements into the span, then the rule consumes it.
template <class T, class Fill>
void step_by_spans(ServerFormula formula, const ServerVectors<T>& vec, bool of_delta, const ServerNumbers<T>& numbers,
                   int threads, Fill fill) {
  const auto loop = vector_loops<T>().server[formula][of_delta][vec.m != nullptr];
  for_chunks(vec.d, threads, [&](std::int64_t begin, std::int64_t n) {
    alignas(64) T span[kSumSpan];
    for (std::int64_t i = begin; i < begin + n; i += kSumSpan) {
      const std::int64_t length = std::min(kSumSpan, begin + n - i);
      fill(i, length, span);
      loop(length, vec.x + i, span, at(vec.m, i), at(vec.v, i), at(vec.vmax, i), numbers);
    }
  });
}

}  // namespace

template <class T>
void server_step(ServerFormula formula, const ServerVectors<T>& vec, const void* delta, DeltaType type, bool of_delta,
                 const ServerNumbers<T>& numbers, int threads) {
  if (type != kSame) {
    const auto widen = vector_loops<T>().widen[type];
    step_by_spans(formula, vec, of_delta, numbers, threads, [&](std::int64_t begin, std::int64_t n, T* span) {
      widen(n, span, static_cast<const Half*>(delta) + begin);
    });
    return;
  }
  const auto loop = vector_loops<T>().server[formula][of_delta][vec.m != nullptr];
  const T* along = static_cast<const T*>(delta);
  for_chunks(vec.d, threads, [&](std::int64_t begin, std::int64_t n) {
    loop(n, vec.x + begin, along + begin, at(vec.m, begin), at(vec.v, begin), at(vec.vmax, begin), numbers);
  });
}

template <class T> void weighted_sum(std::int64_t d, const Deltas<T>& deltas, T* out, int threads) {
  const auto weigh = vector_loops<T>().weigh[deltas.type];
  const std::int64_t bytes = bytes_of(deltas.type, sizeof(T));
  const char* data = static_cast<const char*>(deltas.data);
  for_chunks(d, threads, [&](std::int64_t begin, std::int64_t n) {
    for (std::int64_t i = begin; i < begin + n; i += kSumSpan)
      weigh(std::min(kSumSpan, begin + n - i), out + i, data + i * bytes, d, deltas.weights, deltas.clients);
  });
}

template <class T>
void aggregate_step(ServerFormula formula, const ServerVectors<T>& vec, const Deltas<T>& deltas, bool of_delta,
                    const ServerNumbers<T>& numbers, int threads) {
  const auto weigh = vector_loops<T>().weigh[deltas.type];
  const std::int64_t bytes = bytes_of(deltas.type, sizeof(T));
  const char* data = static_cast<const char*>(deltas.data);
  step_by_spans(formula, vec, of_delta, numbers, threads, [&](std::int64_t begin, std::int64_t n, T* span) {
    weigh(n, span, data + begin * bytes, vec.d, deltas.weights, deltas.clients);
  });
}

template <class T>
void aggregate_parts(ServerFormula formula, const std::vector<Part<T>>& parts, const T* weights, bool subtract,
                     bool of_delta, const ServerNumbers<T>& numbers, int threads) {
  struct Span {
    const Part<T>* part;
    std::int64_t begin, n;
  };
  std::vector<Span> spans;  // over all parts, so that threads share the work evenly whatever the parts' sizes
  for (const Part<T>& part : parts)
    for (std::int64_t i = 0; i < part.vectors.d; i += kSumSpan)
      spans.push_back({&part, i, std::min(kSumSpan, part.vectors.d - i)});
  const auto weigh = vector_loops<T>().weigh_moves;
  for_tasks(std::int64_t(spans.size()), threads, [&](std::int64_t task, int) {
    const auto [part, begin, n] = spans[std::size_t(task)];
    const ServerVectors<T>& vec = part->vectors;
    std::vector<const T*> rows(part->rows);
    for (const T*& row : rows) row += begin;
    alignas(64) T delta[kSumSpan];
    weigh(n, delta, rows.data(), subtract ? vec.x + begin : nullptr, weights, std::int64_t(rows.size()));
    const auto loop = vector_loops<T>().server[formula][of_delta][vec.m != nullptr];
    loop(n, vec.x + begin, delta, at(vec.m, begin), at(vec.v, begin), at(vec.vmax, begin), numbers);
  });
}

#define FF_INSTANTIATE(T)                                                                            \
  template void server_step<T>(ServerFormula, const ServerVectors<T>&, const void*, DeltaType, bool, \
                               const ServerNumbers<T>&, int);                                        \
  template void weighted_sum<T>(std::int64_t, const Deltas<T>&, T*, int);                            \
  template void aggregate_step<T>(ServerFormula, const ServerVectors<T>&, const Deltas<T>&, bool,    \
                                  const ServerNumbers<T>&, int);                                     \
  template void aggregate_parts<T>(ServerFormula, const std::vector<Part<T>>&, const T*, bool, bool, \
                                   const ServerNumbers<T>&, int);
FF_INSTANTIATE(float)
FF_INSTANTIATE(double)

}  // namespace fastfed
