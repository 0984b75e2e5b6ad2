// Waiting for memory that another process or a device writes, without a core that spins while nothing happens.
#pragma once
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <thread>

namespace dp {

// Looks the more rarely the longer nothing has happened, over any number of waits: after a quarter of the silence, at
// most a millisecond while work goes on, and 5 ms once it has been quiet for a second. News is seen late by no more.
class Backoff {
 public:
  // Looks until `ready()`, which is news, or for `timeout_us`.
  template <class Ready>
  bool wait_until(Ready ready, int64_t timeout_us) {
    const int64_t end = clock_us() + timeout_us;
    while (!ready()) {
      const int64_t now = clock_us(), quiet = now - news_.load(std::memory_order_relaxed);
      if (now >= end) return false;
      if (quiet < 20) {
        std::this_thread::yield();
      } else {
        const int64_t pause = std::min(quiet / 4, std::clamp<int64_t>(quiet / 200, 1000, 5000));
        std::this_thread::sleep_for(std::chrono::microseconds(std::min(pause, end - now)));
      }
    }
    news();
    return true;
  }

  // Something has happened, so that more is likely. Any thread may say so; one that sleeps ends its sleep first.
  void news() { news_.store(clock_us(), std::memory_order_relaxed); }

 private:
  static int64_t clock_us() {
    const auto since_epoch = std::chrono::steady_clock::now().time_since_epoch();
    return std::chrono::duration_cast<std::chrono::microseconds>(since_epoch).count();
  }

  std::atomic<int64_t> news_ = clock_us();
};

}  // namespace dp
