// Waking an engine that has parked: the device runs nothing, its process waits at a futex in the rings' memory.
#pragma once
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <ctime>

#include "common/layout.hpp"
#include "common/portable.hpp"

namespace dp {

inline long futex(uint32_t& word, int operation, uint32_t value, const timespec* timeout) {
  return syscall(SYS_futex, &word, operation, value, timeout, nullptr, 0);
}

// A frontend's, after it has published something. Either it sees that the engine has parked, or `park` sees what it
// published.
inline void wake(RingMemory& memory) {
  uint32_t& parked = memory.doorbell.parked;
  // Not a plain load, which would overtake what was published.
  if (SharedWord<uint32_t>(parked).fetch_add(0, std::memory_order_seq_cst) == 0) return;
  publish(parked, 0u);
  futex(parked, FUTEX_WAKE, 1, nullptr);
}

// The engine's process's, while its device is parked: whether somebody has rung, which it waits for so long. The
// heartbeat, which the device leaves to it meanwhile, says that it does.
inline bool await_wake(RingMemory& memory, int64_t timeout_us) {
  uint32_t& parked = memory.doorbell.parked;
  add(memory.status.heartbeat, uint64_t{1});
  const timespec timeout = {.tv_sec = timeout_us / 1'000'000, .tv_nsec = timeout_us % 1'000'000 * 1'000};
  if (observe(parked) != 0) futex(parked, FUTEX_WAIT, 1, &timeout);
  return observe(parked) == 0;
}

}  // namespace dp
