// Random numbers block by block: every block of four words is computed on its own, by any thread.
#include "cpu/random.h"

#include <utility>

#include "cpu/parallel.h"

namespace fastfed {
namespace {

Words block_words(const Stream& stream, std::int64_t client, std::int64_t block) {
  return philox({{Word(block), stream.step, Word(client), stream.round}}, stream.key0, stream.key1);
}

// fill(words, four) turns a block of words into four numbers.
template <class Fill>
void fill_rows(std::int64_t rows, std::int64_t n, const Stream& stream, const std::int64_t* clients, float* out,
               int threads, Fill fill) {
  const std::int64_t chunks = chunks_of(n);
  for_tasks(rows * chunks, threads, [&](std::int64_t task, int) {
    const std::int64_t row = task / chunks, begin = task % chunks * kChunk, end = std::min(begin + kChunk, n);
    float* numbers = out + row * n;
    for (std::int64_t i = begin; i < end; i += 4) {
      float four[4];
      fill(block_words(stream, clients[row], i / 4), four);
      for (std::int64_t j = i; j < std::min(i + 4, end); ++j) numbers[j] = four[j - i];
    }
  });
}

}  // namespace

void uniform(std::int64_t rows, std::int64_t n, const Stream& stream, const std::int64_t* clients, float* out,
             int threads) {
  fill_rows(rows, n, stream, clients, out, threads, [](const Words& words, float* four) {
    for (int i = 0; i < 4; ++i) four[i] = uniform_of(words.w[i]);
  });
}

void normal(std::int64_t rows, std::int64_t n, const Stream& stream, const std::int64_t* clients, float* out,
            int threads) {
  fill_rows(rows, n, stream, clients, out, threads, [](const Words& words, float* four) {
    normal_pair(words.w[0], words.w[1], four[0], four[1]);
    normal_pair(words.w[2], words.w[3], four[2], four[3]);
  });
}

void permutation(std::int64_t rows, std::int64_t n, const Stream& stream, const std::int64_t* clients,
                 std::int64_t* out, int threads) {
  for_tasks(rows, threads, [&](std::int64_t row, int) {
    std::vector<std::pair<long long, std::int64_t>> keyed(static_cast<std::size_t>(n));
    for (std::int64_t i = 0; i < n; ++i) {
      const Words words = block_words(stream, clients[row], i / 2);
      keyed[std::size_t(i)] = {sort_key(words.w[i % 2 * 2], words.w[i % 2 * 2 + 1]), i};
    }
    std::sort(keyed.begin(), keyed.end());  // equal keys fall back on the index, as a stable sort does
    for (std::int64_t i = 0; i < n; ++i) out[row * n + i] = keyed[std::size_t(i)].second;
  });
}

}  // namespace fastfed
