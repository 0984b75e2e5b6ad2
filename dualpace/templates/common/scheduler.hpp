// The scheduler: between two forward passes it takes what the last one sampled, reads the rings, and lays out the next.
//
// Work on rows and tokens is spread over the team. What happens to a request once (it arrives, is admitted, ends) is
// decided by the leader, one after the other. Nothing is ordered by who came first to an atomic, so the same inputs
// give the same steps on every target.
#pragma once
#include "common/admit.hpp"
#include "common/batch.hpp"
#include "common/poll.hpp"
#include "common/retire.hpp"
#include "common/state.hpp"
#include "common/team.hpp"

namespace dp {

// The state and the step buffers of its lanes, [kLaneCount], were zeroed before.
DP_FN inline void start(State& s, StepBuffers* lanes, int32_t vocabulary) {
  s.vocabulary = vocabulary;
  s.short_lane = kNone;
  const auto fill_list = [](auto& list, int n) {
    list.count = n;
    for (int i = 0; i < n; ++i) list.item[i] = n - 1 - i;
  };
  fill_list(s.requests.free, Requests::N);
  fill_list(s.rows.free, Rows::N);
  if constexpr (kOffload) {
    for (int i = 0; i < kSlowRows; ++i) s.recall->seats.item[i] = s.rows.free.item[--s.rows.free.count];
    s.recall->seats.count = kSlowRows;
    fill_list(s.recall->host, kHostPages);
  }
  fill_list(s.history.free, cfg::kHistoryPages);
  for (int g = 0; g < cfg::kGroups; ++g) {
    fill_list(s.pages.free[g], cfg::kPages[g]);
    s.pages.hand[g] = cfg::kPages[g] - 1;
  }
  for (int lane = 0; lane < kLaneCount; ++lane) {
    lanes[lane].lane = static_cast<uint32_t>(lane);
    for (auto& tables : lanes[lane].table) {
      for (auto& table : tables) {
        for (int32_t& entry : table) entry = kNone;
      }
    }
  }
  for (int32_t& first : s.prefixes.bucket) first = kNone;
  for (auto& state : s.pages.state) {
    for (int32_t& entry : state.prefix) entry = kNone;
  }
  for (int r = 0; r < Rows::N; ++r) s.rows.request[r] = kNone;
  for (RingState& ring : s.rings) {
    ring.ended = {kNone, kNone};
    for (Chain& queue : ring.queue) queue = {kNone, kNone};
  }
}

// What the engine says of itself: words of no order but the heartbeat's, which comes last where one thread stores them.
template <class Team>
DP_FN void report(Team& team, State& s, EngineStatus& status) {
  static_assert(sizeof(Counters) % sizeof(uint64_t) == 0);
  const auto* counted = reinterpret_cast<const uint64_t*>(&s.counters);
  auto* shown = reinterpret_cast<uint64_t*>(&status.counters);
  team.each(sizeof(Counters) / sizeof(uint64_t), [&](int i) { show(shown[i], counted[i]); });
  if (!team.leader()) return;
  int waiting = 0, scarcest = 0;
  int64_t waiting_tokens = 0;
  for (const RingState& ring : s.rings) {
    waiting += ring.queued;
    waiting_tokens += ring.queued_tokens;
  }
  for (int g = 1; g < cfg::kGroups; ++g) {
    const auto free = [&](int group) { return static_cast<int64_t>(available(s, group)); };
    if (free(g) * cfg::kPages[scarcest] < free(scarcest) * cfg::kPages[g]) scarcest = g;
  }
  const auto free = static_cast<uint32_t>(available(s, scarcest)), idle = static_cast<uint32_t>(s.pages.idle[scarcest]);
  const auto running = static_cast<uint32_t>(s.rows.running_count);
  const uint64_t steps = s.step, heartbeat = ++s.heartbeat;
  show(status.steps, steps);
  show(status.running, running);
  show(status.waiting, static_cast<uint32_t>(waiting));
  show(status.waiting_tokens, static_cast<uint64_t>(waiting_tokens));
  show(status.free_pages, free);
  show(status.cached_pages, idle);
  if constexpr (kOffload) {
    show(status.slow_rows, static_cast<uint32_t>(running_rows(s, kSlowLane)));
    show(status.host_pages, static_cast<uint32_t>(kHostPages - host_spare(*s.recall)));
    show(status.total_host_pages, static_cast<uint32_t>(kHostPages));
  }
  show(status.total_pages, static_cast<uint32_t>(cfg::kPages[scarcest]));
  show(status.heartbeat, heartbeat);
}

// Takes what the last step of the lane that `b` belongs to sampled, and lays out its next. One call at a time, of all
// lanes together.
template <class Team>
DP_FN void schedule(Team& team, State& s, StepBuffers& b, RingMemory& m) {
  const auto sights = look(team, s, m);
  if constexpr (kOffload) reclaim(team, s);
  retire(team, s, b, m);
  poll(team, s, b, m, sights);
  team.beside([&](auto& side) { announce(side, s, m); });
  admit(team, s, b);
  lay_out(team, s, b);
  report(team, s, m.status);
  team.rejoin();
}

}  // namespace dp
