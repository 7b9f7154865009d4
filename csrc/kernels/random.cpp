// Random numbers chunk by chunk: every Philox block is computed on its own, by any thread.
#include "kernels/random.h"

#include <numeric>
#include <utility>

#include "kernels/parallel.h"
#include "simd/simd.h"

namespace fastfed {
namespace {

static_assert(kChunk % 4 == 0, "a Philox block belongs to one chunk");

using Fill = void (*)(const Stream&, Word client, Word block, std::int64_t n, float* out);

void fill_rows(std::int64_t rows, std::int64_t n, const Stream& stream, const std::int64_t* clients, float* out,
               int threads, Fill fill) {
  const std::int64_t chunks = chunks_of(n);
  for_tasks(rows * chunks, threads, [&](std::int64_t task, int) {
    const std::int64_t row = task / chunks, begin = task % chunks * kChunk;
    fill(stream, Word(clients[row]), Word(begin / 4), std::min(kChunk, n - begin), out + row * n + begin);
  });
}

// Short rows of many clients: kClientLanes of them share every vector of Philox words.
void fill_short_rows(std::int64_t rows, std::int64_t n, const Stream& stream, const std::int64_t* clients, float* out,
                     int threads) {
  constexpr std::int64_t kTogether = 64 * kClientLanes;  // rows of a task
  const std::int64_t blocks = (n + 3) / 4;
  for_tasks((rows + kTogether - 1) / kTogether, threads, [&](std::int64_t task, int) {
    std::vector<Word> words(std::size_t(4 * blocks * kClientLanes));
    const std::int64_t end = std::min(rows, (task + 1) * kTogether);
    for (std::int64_t first = task * kTogether; first < end; first += kClientLanes) {
      const std::int64_t count = std::min<std::int64_t>(kClientLanes, end - first);
      std::int64_t ids[kClientLanes] = {};
      std::copy(clients + first, clients + first + count, ids);
      vector_loops<float>().words_of_clients(stream, ids, blocks, words.data());
      for (std::int64_t lane = 0; lane < count; ++lane)
        for (std::int64_t i = 0; i < n; ++i)
          out[(first + lane) * n + i] = uniform_of(words[std::size_t(i * kClientLanes + lane)]);
    }
  });
}

// Turns n sort keys into the order of their indices. Keys are random bits, so the topmost ones deal them evenly into
// about n buckets, and each bucket is all but sorted.
void keys_to_order(std::int64_t n, std::int64_t* keys) {
  constexpr int kKeyBits = 63, kMostBits = 20;
  int bits = 1;
  while (bits < kMostBits && (std::int64_t(1) << bits) < n) ++bits;
  const auto bucket = [&](std::int64_t key) { return std::size_t(key >> (kKeyBits - bits)); };
  std::vector<std::int64_t> ends(std::size_t(1) << bits);  // counts, then starts, then ends of the buckets
  for (std::int64_t i = 0; i < n; ++i) ++ends[bucket(keys[i])];
  std::int64_t sum = 0;
  for (std::int64_t& count : ends) sum += std::exchange(count, sum);
  std::vector<std::pair<std::int64_t, std::int64_t>> keyed(static_cast<std::size_t>(n));
  for (std::int64_t i = 0; i < n; ++i) keyed[std::size_t(ends[bucket(keys[i])]++)] = {keys[i], i};
  std::int64_t begin = 0;
  for (const std::int64_t end : ends) {
    if (end - begin > 1) std::sort(keyed.begin() + begin, keyed.begin() + end);  // equal keys: by index, as if stable
    begin = end;
  }
  for (std::int64_t i = 0; i < n; ++i) keys[i] = keyed[std::size_t(i)].second;
}

}  // namespace

void uniform(std::int64_t rows, std::int64_t n, const Stream& stream, const std::int64_t* clients, float* out,
             int threads) {
  constexpr std::int64_t kShort = 128;
  if (n <= kShort && rows >= kClientLanes) return fill_short_rows(rows, n, stream, clients, out, threads);
  fill_rows(rows, n, stream, clients, out, threads, vector_loops<float>().uniform);
}

void normal(std::int64_t rows, std::int64_t n, const Stream& stream, const std::int64_t* clients, float* out,
            int threads) {
  fill_rows(rows, n, stream, clients, out, threads, vector_loops<float>().normal);
}

void permutation(std::int64_t rows, std::int64_t n, const Stream& stream, const std::int64_t* clients,
                 std::int64_t* out, int threads) {
  const auto sort_keys = vector_loops<float>().sort_keys;
  for_tasks(rows, threads, [&](std::int64_t row, int) {
    sort_keys(stream, Word(clients[row]), 0, n, out + row * n);
    keys_to_order(n, out + row * n);
  });
}

void shuffles(std::int64_t rows, std::int64_t width, const Stream& stream, const Shuffles& of, std::int64_t* out,
              int threads) {
  const auto sort_keys = vector_loops<float>().sort_keys;
  for_tasks(rows, threads, [&](std::int64_t row, int) {
    const std::int64_t n = of.counts[row];
    std::int64_t* order = out + row * width;
    if (n > 0) {
      sort_keys({stream.key0, stream.key1, Word(of.steps[row]), stream.round}, Word(of.clients[row]), 0, n, order);
      keys_to_order(n, order);
    }
    std::iota(order + n, order + width, n);
  });
}

}  // namespace fastfed
