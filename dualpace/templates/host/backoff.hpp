// Waiting for memory that another process or a device writes, without a core that spins while nothing happens.
#pragma once
#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstdlib>
#include <mutex>
#include <thread>

namespace dp {

// Looks the more rarely the longer nothing has happened, over any number of waits: after a quarter of the silence, at
// most a quarter of a millisecond, or a two-hundredth of the silence, or `longest_us`. News is seen late by no more.
//
// Where news comes in bursts at a steady pace, as steps do, most looks between two of them would be in vain: until the
// next is nearly due they are `kStridePauseUs` apart, which is how late news out of turn may be seen.
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
        heard_.wait_for(lock, std::chrono::microseconds(std::min(pause(now, quiet), end - now)));
      }
    }
    const std::lock_guard lock(mutex_);
    news_ = clock_us();
    if (news_ - burst_ > kBurstUs) {
      const int64_t stride = news_ - burst_;
      is_steady_ = std::abs(stride - stride_) < stride_ / 8;
      stride_ = stride;
      burst_ = news_;
    }
    return true;
  }

  // Something is about to happen: ends a pause. Any thread may say so.
  void news() {
    {
      const std::lock_guard lock(mutex_);
      news_ = clock_us();
      is_steady_ = false;
    }
    heard_.notify_all();
  }

 private:
  // What comes within so long of a burst's beginning is part of it.
  static constexpr int64_t kBurstUs = 1000;
  static constexpr int64_t kStridePauseUs = 2000;

  static int64_t clock_us() {
    const auto since_epoch = std::chrono::steady_clock::now().time_since_epoch();
    return std::chrono::duration_cast<std::chrono::microseconds>(since_epoch).count();
  }

  int64_t pause(int64_t now, int64_t quiet) const {
    const int64_t often = std::min(quiet / 4, std::clamp<int64_t>(quiet / 200, 250, longest_us_));
    if (!is_steady_ || quiet < kBurstUs) return often;
    return std::max(often, std::min(burst_ + stride_ * 7 / 8 - now, kStridePauseUs));
  }

  const int64_t longest_us_;
  std::mutex mutex_ = {};
  std::condition_variable heard_ = {};
  int64_t news_ = clock_us();
  // When the last burst began, how long after the one before it, and whether that one came as long after its own.
  int64_t burst_ = 0, stride_ = 0;
  bool is_steady_ = false;
};

}  // namespace dp
