// What the replay engine and the load client note, by one clock, for benchmarks/frontend.py to compare.
#pragma once
#include <chrono>
#include <cstdint>

// `what` happened to the request of that seed; each side has kinds, and a count of what has come so far, of its own.
struct Moment {
  uint64_t seed;
  uint32_t count;
  uint32_t what;
  uint64_t ns;  // of the monotonic clock
};

inline uint64_t clock_ns() {
  const auto since_boot = std::chrono::steady_clock::now().time_since_epoch();
  return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(since_boot).count());
}
