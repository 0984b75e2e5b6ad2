// Waiting for memory that another process or a device writes, without a core that spins while nothing happens.
#pragma once
#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>

namespace dp {

// Looks the more rarely the longer nothing has happened, over any number of waits: after a quarter of the silence, at
// most a quarter of a millisecond, or a two-hundredth of the silence, or `longest_us`. News is seen late by no more.
class Backoff {
 public:
  explicit Backoff(int64_t longest_us) : longest_us_(longest_us) {}

  // Looks until `ready()`, which is news, or for `timeout_us`.
  template <class Ready>
  bool wait_until(Ready ready, int64_t timeout_us) {
    const int64_t end = clock_us() + timeout_us;
    while (!ready()) {
      std::unique_lock lock(mutex_);
      const int64_t now = clock_us(), quiet = now - news_;
      if (now >= end) return false;
      if (quiet < 20) {
        lock.unlock();
        std::this_thread::yield();
      } else {
        const int64_t pause = std::min(quiet / 4, std::clamp<int64_t>(quiet / 200, 250, longest_us_));
        heard_.wait_for(lock, std::chrono::microseconds(std::min(pause, end - now)));
      }
    }
    news();
    return true;
  }

  // Something has happened, so that more is likely: ends a pause. Any thread may say so.
  void news() {
    {
      const std::lock_guard lock(mutex_);
      news_ = clock_us();
    }
    heard_.notify_all();
  }

 private:
  static int64_t clock_us() {
    const auto since_epoch = std::chrono::steady_clock::now().time_since_epoch();
    return std::chrono::duration_cast<std::chrono::microseconds>(since_epoch).count();
  }

  const int64_t longest_us_;
  std::mutex mutex_ = {};
  std::condition_variable heard_ = {};
  int64_t news_ = clock_us();
};

}  // namespace dp
