// Server steps and weighted sums over packed vectors, chunk by chunk.
#pragma once

#include <cstdint>
#include <vector>

#include "simd/vector_loops.h"

namespace fastfed {

template <class T> struct ServerVectors {
  std::int64_t d;
  T* x;
  T* m;  // null where the rule does without
  T* v;
  T* vmax;
};

// The clients' deltas: rows of d elements, `clients` of them, each with its weight.
template <class T> struct Deltas {
  const void* data;
  DeltaType type;
  std::int64_t clients;
  const T* weights;
};

template <class T>
void server_step(ServerFormula formula, const ServerVectors<T>& vectors, const void* delta, DeltaType type,
                 bool of_delta, const ServerNumbers<T>& numbers, int threads);

template <class T> void weighted_sum(std::int64_t d, const Deltas<T>& deltas, T* out, int threads);

// The weighted sum of the deltas, and the server step along it, in one pass: the sum only ever fills a span in cache.
template <class T>
void aggregate_step(ServerFormula formula, const ServerVectors<T>& vectors, const Deltas<T>& deltas, bool of_delta,
                    const ServerNumbers<T>& numbers, int threads);

// The same over a model in parts, as hosts hold one: every part (a layer) has its own vectors, and of every client its
// own array, `rows`. Where `subtract`, these are the clients' models, and what they differ from x by is the delta.
template <class T> struct Part {
  ServerVectors<T> vectors;
  std::vector<const T*> rows;  // one of each client
};
template <class T>
void aggregate_parts(ServerFormula formula, const std::vector<Part<T>>& parts, const T* weights, bool subtract,
                     bool of_delta, const ServerNumbers<T>& numbers, int threads);

}  // namespace fastfed
