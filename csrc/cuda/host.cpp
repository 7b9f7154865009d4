// Runs CUDA kernels on the CPU, one block after the other. Every thread of a block is a fiber; a barrier or a shuffle
// switches to the next one until all have arrived.
//
// A fiber that finishes its thread takes the next thread that nobody has begun, so a kernel without barriers runs all
// its threads in one fiber and never switches. Fibers begin by ucontext and switch by _setjmp/_longjmp, which make no
// system call. What a GPU would answer with a hang or with garbage (a barrier that not all threads reach, a shuffle
// with missing lanes, an argument of the wrong size) is an error with a sentence here; its fibers are thrown away.
#include "cuda/host.h"

#include <ucontext.h>
#include <csetjmp>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>

Dim3 threadIdx, blockIdx, blockDim, gridDim;

namespace fastfed::host {
namespace {

constexpr int kLanes = 32;
constexpr std::size_t kStackBytes = 64 * 1024;

std::map<std::string, Kernel>& kernels() {
  static std::map<std::string, Kernel> table;
  return table;
}

// Where threads wait for each other: a block's barrier or a warp's shuffle. Values of one meeting stay readable until
// the next but one, and nobody can be further ahead than that.
struct Meeting {
  int members = 0, arrived = 0;
  long clock = 0;
  const char* file = nullptr;
  int line = 0;
  unsigned char values[2][kLanes][8];
};

struct Fiber {
  ucontext_t start;
  jmp_buf resume;
  bool begun = false;
  unsigned thread = 0;
  const Meeting* waits_for = nullptr;
  long since = 0;
  std::unique_ptr<char[]> stack{new char[kStackBytes]};
};

// The block that runs now; one launch at a time.
struct Block {
  const Kernel* kernel = nullptr;
  void** arguments = nullptr;
  unsigned threads = 0, begun = 0, finished = 0;
  Meeting barrier;
  std::vector<Meeting> warps;
  std::vector<Fiber*> waiting, idle;
  std::string error;
} block;

std::vector<std::unique_ptr<Fiber>> fibers;
Fiber* current = nullptr;
jmp_buf scheduler;

void run_threads_forever() {
  for (;;) {
    while (block.begun < block.threads) {
      current->thread = threadIdx.x = block.begun++;
      block.kernel->call(block.arguments);
      ++block.finished;
    }
    block.idle.push_back(current);
    if (_setjmp(current->resume) == 0) _longjmp(scheduler, 1);
  }
}

// Runs the fiber until it waits or has nothing left to do.
__attribute__((noinline)) void run(Fiber* fiber) {
  current = fiber;
  threadIdx.x = fiber->thread;
  if (_setjmp(scheduler) != 0) return;
  if (fiber->begun) _longjmp(fiber->resume, 1);
  fiber->begun = true;
  setcontext(&fiber->start);
}

// Its own function: getcontext returns twice, as _setjmp does, which no local variable should have to survive.
__attribute__((noinline)) void give_stack(Fiber& fiber) {
  getcontext(&fiber.start);
  fiber.start.uc_stack.ss_sp = fiber.stack.get();
  fiber.start.uc_stack.ss_size = kStackBytes;
  fiber.start.uc_link = nullptr;
  makecontext(&fiber.start, run_threads_forever, 0);
}

Fiber* idle_fiber() {
  if (block.idle.empty()) {
    fibers.push_back(std::make_unique<Fiber>());
    give_stack(*fibers.back());
    return fibers.back().get();
  }
  Fiber* fiber = block.idle.back();
  block.idle.pop_back();
  return fiber;
}

void wait_in_scheduler() {
  if (_setjmp(current->resume) == 0) _longjmp(scheduler, 1);
}

std::string place(const char* file, int line) {
  const std::string path = file;
  return path.substr(path.find_last_of('/') + 1) + ":" + std::to_string(line);
}

// Gives up on this launch from inside a fiber.
void fail(const std::string& error) {
  if (block.error.empty()) block.error = error;
  wait_in_scheduler();
}

// Waits until all members have come to the same place.
void meet(Meeting& meeting, const char* file, int line) {
  if (meeting.arrived > 0 && (meeting.line != line || std::strcmp(meeting.file, file) != 0)) {
    fail("threads wait at different places: " + place(meeting.file, meeting.line) + " and " + place(file, line));
  }
  meeting.file = file;
  meeting.line = line;
  if (++meeting.arrived == meeting.members) {
    meeting.arrived = 0;
    ++meeting.clock;
    return;
  }
  current->waits_for = &meeting;
  current->since = meeting.clock;
  block.waiting.push_back(current);
  wait_in_scheduler();
}

std::string stuck() {
  const Fiber* fiber = block.waiting.front();
  const Meeting& meeting = *fiber->waits_for;
  return (&meeting == &block.barrier ? "divergent barrier at " : "shuffle with missing lanes at ") +
         place(meeting.file, meeting.line) + ": thread " + std::to_string(fiber->thread) + " of block (" +
         std::to_string(blockIdx.x) + ", " + std::to_string(blockIdx.y) + ", " + std::to_string(blockIdx.z) +
         ") waits there with " + std::to_string(meeting.arrived) + " of " + std::to_string(meeting.members) +
         " threads, " + std::to_string(block.finished) + " have returned";
}

void resume_waiting() {
  std::vector<Fiber*> round;
  while (!block.waiting.empty() && block.error.empty()) {
    bool progress = false;
    round.swap(block.waiting);
    for (Fiber* fiber : round) {
      if (block.error.empty() && fiber->waits_for->clock != fiber->since) {
        progress = true;
        run(fiber);
      } else {
        block.waiting.push_back(fiber);
      }
    }
    round.clear();
    if (!progress && block.error.empty()) block.error = stuck();
  }
}

void run_block() {
  block.begun = block.finished = 0;
  block.barrier.arrived = 0;
  while (block.begun < block.threads && block.error.empty()) run(idle_fiber());
  resume_waiting();
}

void run_grid() {
  for (blockIdx.z = 0; blockIdx.z < gridDim.z; ++blockIdx.z) {
    for (blockIdx.y = 0; blockIdx.y < gridDim.y; ++blockIdx.y) {
      for (blockIdx.x = 0; blockIdx.x < gridDim.x; ++blockIdx.x) {
        run_block();
        if (!block.error.empty()) return;
      }
    }
  }
}

void prepare(const Kernel& kernel, const unsigned grid[3], unsigned threads, void** arguments) {
  block.kernel = &kernel;
  block.arguments = arguments;
  block.threads = threads;
  block.error.clear();
  block.barrier = {};
  block.barrier.members = int(threads);
  block.warps.assign((threads + kLanes - 1) / kLanes, {});
  for (std::size_t warp = 0; warp < block.warps.size(); ++warp) {
    const unsigned rest = threads - unsigned(warp) * kLanes;
    block.warps[warp].members = rest < kLanes ? int(rest) : kLanes;
  }
  gridDim = {grid[0], grid[1], grid[2]};
  blockDim = {threads, 1, 1};
  threadIdx = {0, 0, 0};
}

std::string mismatch(const char* name, const Kernel& kernel, const std::size_t* sizes, std::size_t count) {
  const std::string who = std::string("kernel ") + name + " ";
  if (count != kernel.sizes.size()) {
    return who + "takes " + std::to_string(kernel.sizes.size()) + " arguments, got " + std::to_string(count);
  }
  for (std::size_t i = 0; i < count; ++i) {
    if (sizes[i] != kernel.sizes[i]) {
      return who + "takes " + std::to_string(kernel.sizes[i]) + " bytes as argument " + std::to_string(i) + ", got " +
             std::to_string(sizes[i]);
    }
  }
  return "";
}

}  // namespace

void add_kernel(const char* name, Kernel kernel) { kernels()[name] = std::move(kernel); }

int lane_of_thread() { return int(threadIdx.x % kLanes); }

void barrier(const char* file, int line) { meet(block.barrier, file, line); }

void exchange(void* value, unsigned mask, int lane, const char* file, int line) {
  if (mask != 0xFFFFFFFFu) fail("shuffle at " + place(file, line) + ": only the mask of all lanes is supported");
  Meeting& warp = block.warps[threadIdx.x / kLanes];
  const int own = lane_of_thread();
  auto& values = warp.values[warp.clock % 2];
  std::memcpy(values[own], value, 8);
  meet(warp, file, line);
  std::memcpy(value, values[lane >= 0 && lane < warp.members ? lane : own], 8);
}

}  // namespace fastfed::host

// Runs a kernel over a grid of blocks of `threads`; `arguments` point to its arguments, `sizes` are their bytes.
// Returns nullptr, or what went wrong (valid until this thread's next launch).
extern "C" const char* launch(const char* name, const unsigned grid[3], unsigned threads, void** arguments,
                              const std::size_t* sizes, std::size_t count) {
  using namespace fastfed::host;
  static std::mutex one_at_a_time;
  static thread_local std::string error;
  const std::lock_guard<std::mutex> lock(one_at_a_time);
  const auto found = kernels().find(name);
  error = found == kernels().end() ? std::string("no kernel ") + name : mismatch(name, found->second, sizes, count);
  if (!error.empty()) return error.c_str();
  prepare(found->second, grid, threads, arguments);
  run_grid();
  if (block.error.empty()) return nullptr;
  error = std::string("kernel ") + name + ": " + block.error;
  block.waiting.clear();
  block.idle.clear();
  fibers.clear();
  return error.c_str();
}
