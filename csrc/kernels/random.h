// Random numbers and permutations of Philox streams.
#pragma once

#include <cstdint>

#include "philox.h"

namespace fastfed {

// Row r of out (rows, n) holds the numbers of client clients[r].
void uniform(std::int64_t rows, std::int64_t n, const Stream& stream, const std::int64_t* clients, float* out,
             int threads);
void normal(std::int64_t rows, std::int64_t n, const Stream& stream, const std::int64_t* clients, float* out,
            int threads);

// Row r of out (rows, n) becomes a permutation of 0 .. n-1.
void permutation(std::int64_t rows, std::int64_t n, const Stream& stream, const std::int64_t* clients,
                 std::int64_t* out, int threads);

// Who shuffles how many things: row r is client clients[r] at step steps[r], with counts[r] things.
struct Shuffles {
  const std::int64_t *clients, *steps, *counts;
};

// Row r of out (rows, width): the permutation of its client's stream at its step in the first counts[r] places, the
// places themselves behind it. The stream's own step counts for nothing.
void shuffles(std::int64_t rows, std::int64_t width, const Stream& stream, const Shuffles& of, std::int64_t* out,
              int threads);

}  // namespace fastfed
