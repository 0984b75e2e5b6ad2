// What rings leave each other. A ring whose frontend stalls keeps its requests, and with them two things that cannot be
// taken back: request slots, and history pages, the only copy of their tokens. So whatever a ring takes of these leaves
// every other ring what its next request needs: a slot, history for the longest prompt to wait in, and for the longest
// life. Row slots and KV pages need no such reserve, for paused rows give them back (`admit_waiting`).
#pragma once
#include "common/state.hpp"

namespace dp {

static_assert(cfg::kMaxRequests >= cfg::kRings, "each ring has a request slot");
static_assert(cfg::kHistoryPages >= 2 * cfg::kRings * kHistoryPagesEach,
              "each ring has history for the longest prompt that waits and for the longest life that runs");

// Rings that share the queue's limits.
DP_FN inline int open_rings(const State& s) {
  int open = 0;
  for (const RingState& ring : s.rings) open += is_open(ring.epoch) ? 1 : 0;
  return most(1, open);
}

DP_FN inline bool leaves_slots(const State& s, int r) {
  int owed = 0;
  for (int i = 0; i < cfg::kRings; ++i) owed += i != r && s.rings[i].requests == 0 ? 1 : 0;
  return s.requests.free.count > owed;
}

// Whether `r` may hold so many more history pages for waiting prompts and for lives.
DP_FN inline bool leaves_history(const State& s, int r, int prompts, int lives) {
  int owed = 0;
  for (int i = 0; i < cfg::kRings; ++i) {
    const RingState& ring = s.rings[i];
    owed += most(0, kHistoryPagesEach - ring.prompts - (i == r ? prompts : 0));
    owed += most(0, kHistoryPagesEach - ring.lives - (i == r ? lives : 0));
  }
  return s.history.free.count - prompts - lives >= owed;
}

}  // namespace dp
