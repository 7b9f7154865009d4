// Work shared among threads so that nothing about the result depends on their number.
#pragma once

#include <omp.h>

#include <algorithm>
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

// Calls work(task) for every task; of tasks that take unlike times, each thread fetches the next one.
template <class Work> void for_uneven_tasks(std::int64_t tasks, int threads, Work work) {
  threads = int(std::min<std::int64_t>(threads, tasks));
  if (threads <= 1) {
    for (std::int64_t task = 0; task < tasks; ++task) work(task);
    return;
  }
#pragma omp parallel for num_threads(threads) schedule(dynamic, 1)
  for (std::int64_t task = 0; task < tasks; ++task) work(task);
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
