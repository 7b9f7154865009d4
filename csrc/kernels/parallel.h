// Work shared among threads so that nothing about the result depends on their number.
#pragma once

#include <omp.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <vector>

namespace fastfed {

constexpr std::int64_t kChunk = 16384;  // elements: the unit of work, and of partial sums
constexpr std::int64_t kSpan = 1024;  // elements of a scratch buffer: four kilobytes, at home in the first-level cache

inline std::int64_t chunks_of(std::int64_t d) { return (d + kChunk - 1) / kChunk; }

// Calls work(task, thread) for every task, each thread a contiguous run of tasks.
template <class Work> void for_tasks(std::int64_t tasks, int threads, Work work) {
  threads = int(std::min<std::int64_t>(threads, tasks));
  if (threads <= 1) {
    for (std::int64_t task = 0; task < tasks; ++task) work(task, 0);
    return;
  }
#pragma omp parallel num_threads(threads)
  {
    const std::int64_t thread = omp_get_thread_num(), team = omp_get_num_threads();
    for (std::int64_t task = tasks * thread / team; task < tasks * (thread + 1) / team; ++task) work(task, int(thread));
  }
}

// The tasks that a thread has left, [first, end) in one word, so that a task is taken by one thread only.
class alignas(64) Share {
 public:
  void hold(std::int64_t first, std::int64_t end) { left_ = std::uint64_t(first) << 32 | std::uint64_t(end); }

  // The first task, or for other threads the last; -1 if none is left.
  std::int64_t take(bool own) {
    std::uint64_t left = left_;
    for (;;) {
      const std::uint64_t first = left >> 32, end = left & 0xFFFFFFFFu;
      if (first >= end) return -1;
      const std::uint64_t rest = own ? (first + 1) << 32 | end : first << 32 | (end - 1);
      if (left_.compare_exchange_weak(left, rest)) return std::int64_t(own ? first : end - 1);
    }
  }

 private:
  std::atomic<std::uint64_t> left_{0};
};

// Calls work(task) for every task, each thread a contiguous run of tasks; one that is done takes over from others,
// whose tasks may be longer, or their core may be busy. Work must not depend on the thread.
template <class Work> void for_uneven_tasks(std::int64_t tasks, int threads, Work work) {
  threads = int(std::min<std::int64_t>(threads, tasks));
  if (threads <= 1) {
    for (std::int64_t task = 0; task < tasks; ++task) work(task);
    return;
  }
  std::vector<Share> shares(static_cast<std::size_t>(threads));
  for (int i = 0; i < threads; ++i) shares[std::size_t(i)].hold(tasks * i / threads, tasks * (i + 1) / threads);
#pragma omp parallel num_threads(threads)
  {
    const int thread = omp_get_thread_num();
    for (int i = 0; i < threads; ++i) {
      Share& share = shares[std::size_t((thread + i) % threads)];
      for (std::int64_t task; (task = share.take(i == 0)) >= 0;) work(task);
    }
  }
}

// Calls work(begin, n) for every chunk of a vector of d elements.
template <class Work> void for_chunks(std::int64_t d, int threads, Work work) {
  for_tasks(chunks_of(d), threads, [&](std::int64_t chunk, int) {
    const std::int64_t begin = chunk * kChunk;
    work(begin, std::min(kChunk, d - begin));
  });
}

// For every client, the sum over its chunks of part(client, begin, n), added in order.
template <class Part> void sum_chunks(std::int64_t clients, std::int64_t d, int threads, double* sums, Part part) {
  const std::int64_t chunks = chunks_of(d);
  std::vector<double> partial(std::size_t(clients * chunks));
  for_tasks(clients * chunks, threads, [&](std::int64_t task, int) {
    const std::int64_t client = task / chunks, begin = task % chunks * kChunk;
    partial[std::size_t(task)] = part(client, begin, std::min(kChunk, d - begin));
  });
  for (std::int64_t client = 0; client < clients; ++client) {
    sums[client] = 0;
    for (std::int64_t chunk = 0; chunk < chunks; ++chunk) sums[client] += partial[std::size_t(client * chunks + chunk)];
  }
}

}  // namespace fastfed
