// Who holds a file of rings: byte 0 is locked by the engine, byte 1 + r by the frontend that has claimed ring r. The
// locks belong to open files, so the kernel gives them up when their owner dies.
#pragma once
#include <fcntl.h>

#include "common/ring.hpp"
#include "host/doorbell.hpp"

namespace dp {

constexpr off_t kEngineByte = 0;

constexpr off_t ring_byte(uint32_t ring) { return 1 + static_cast<off_t>(ring); }

inline struct flock lock_of(off_t byte) {
  struct flock lock = {};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  lock.l_start = byte;
  lock.l_len = 1;
  return lock;
}

// Whether someone else holds the lock; so it is taken to be where the kernel cannot say.
inline bool is_held(int file, off_t byte) {
  struct flock lock = lock_of(byte);
  return fcntl(file, F_OFD_GETLK, &lock) != 0 || lock.l_type != F_UNLCK;
}

// The engine's: gives up the claims whose frontends have died, so that what they left ends as if they had closed. A
// frontend locks before it claims, and unlocks after it has given up: if nobody holds the lock, whoever made a claim
// seen before is gone. If another frontend claims the ring meanwhile, the epoch is no longer that one, and stays.
inline void end_dead_claims(RingMemory& memory, int file) {
  bool ended = false;
  for (uint32_t r = 0; r < cfg::kRings; ++r) {
    uint32_t& epoch = memory.rings[r].control.epoch;
    uint32_t claim = observe(epoch);
    if (!is_open(claim) || is_held(file, ring_byte(r))) continue;
    replace(epoch, claim, claim + 1);
    ended = true;
  }
  if (ended) wake(memory);
}

}  // namespace dp
