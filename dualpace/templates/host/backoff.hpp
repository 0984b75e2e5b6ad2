// Waiting for memory that another process or a device writes, without a core that spins while nothing happens.
#pragma once
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <thread>

namespace dp {

// Looks until `ready()` or for `timeout_us`. Sleeps for a quarter of what it has waited, at most a millisecond: news is
// seen late by no more than that.
template <class Ready>
bool wait_until(Ready ready, int64_t timeout_us) {
  using Clock = std::chrono::steady_clock;
  using std::chrono::microseconds;
  const auto start = Clock::now();
  const microseconds timeout(timeout_us);
  while (!ready()) {
    const auto waited = std::chrono::duration_cast<microseconds>(Clock::now() - start);
    if (waited >= timeout) return false;
    if (waited < microseconds(20)) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(std::min({waited / 4, microseconds(1000), timeout - waited}));
    }
  }
  return true;
}

}  // namespace dp
