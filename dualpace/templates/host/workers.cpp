// The C interface of the threads that attend to KV in host memory for a device.
#include <pthread.h>
#include <sched.h>

#include <atomic>
#include <latch>
#include <memory>
#include <thread>
#include <vector>

#include "host/worker.hpp"

extern "C" void dp_attend_blocks(const float* query, const void* pool, const int32_t* block, int blocks, float* out,
                                 float* lse);

namespace {

bool pin(int cpu) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(static_cast<size_t>(cpu), &set);
  return pthread_setaffinity_np(pthread_self(), sizeof set, &set) == 0;
}

struct Workers {
  std::atomic<int> pinned = 0;
  std::vector<std::jthread> threads = {};
};

}  // namespace

extern "C" {

uint64_t dp_workers_layout() { return dp::kLayoutHash; }
int64_t dp_cooperation_bytes() { return sizeof(dp::Cooperation); }
int dp_most_workers() { return dp::kMostWorkers; }

// A worker for each of `cpus`, pinned there if it may be, the first with desk 0. `cooperation` and the host pool
// outlive them.
void* dp_workers_start(void* cooperation, const void* pool, const int32_t* cpus, int count) {
  auto workers = std::make_unique<Workers>();
  std::latch started(count);
  for (int i = 0; i < count; ++i) {
    workers->threads.emplace_back([=, cpu = cpus[i], &started, &pinned = workers->pinned](std::stop_token stopped) {
      if (pin(cpu)) ++pinned;
      started.count_down();
      const auto attend = [pool](const float* query, const int32_t* block, int blocks, dp::WorkAnswer& to) {
        dp_attend_blocks(query, pool, block, blocks, to.out[0], to.lse);
      };
      // On its own stack and heap, so in memory near its core.
      dp::Worker worker(*static_cast<dp::Cooperation*>(cooperation), i, attend);
      worker.run([&] { return stopped.stop_requested(); });
    });
  }
  started.wait();
  return workers.release();
}

// How many are where they were told to be.
int dp_workers_pinned(const void* handle) { return static_cast<const Workers*>(handle)->pinned; }

// Within the time of a split of each.
void dp_workers_stop(void* handle) { delete static_cast<Workers*>(handle); }

}  // extern "C"
