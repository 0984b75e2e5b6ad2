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

// Both zeroed before.
DP_FN inline void start(State& s, StepBuffers& b, int32_t vocabulary) {
  s.vocabulary = vocabulary;
  const auto fill_list = [](auto& list, int n) {
    list.count = n;
    for (int i = 0; i < n; ++i) list.item[i] = n - 1 - i;
  };
  fill_list(s.requests.free, Requests::N);
  fill_list(s.rows.free, Rows::N);
  fill_list(s.history.free, cfg::kHistoryPages);
  for (int g = 0; g < cfg::kGroups; ++g) {
    fill_list(s.pages.free[g], cfg::kPages[g]);
    s.pages.hand[g] = cfg::kPages[g] - 1;
    for (int r = 0; r < Rows::N; ++r) {
      for (int32_t& entry : b.table[g][r]) entry = kNone;
    }
  }
  for (int32_t& first : s.prefixes.bucket) first = kNone;
  for (auto& state : s.pages.state) {
    for (int32_t& entry : state.prefix) entry = kNone;
  }
  for (int r = 0; r < Rows::N; ++r) s.rows.request[r] = kNone;
  for (RingState& ring : s.rings) ring.queue = ring.ended = {kNone, kNone};
}

DP_FN inline void report(State& s, EngineStatus& status) {
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
  show(status.steps, s.step);
  show(status.running, static_cast<uint32_t>(s.rows.running_count));
  show(status.waiting, static_cast<uint32_t>(waiting));
  show(status.waiting_tokens, static_cast<uint64_t>(waiting_tokens));
  show(status.free_pages, static_cast<uint32_t>(available(s, scarcest)));
  show(status.cached_pages, static_cast<uint32_t>(s.pages.idle[scarcest]));
  show(status.total_pages, static_cast<uint32_t>(cfg::kPages[scarcest]));
  show(status.counters.accepted, s.counters.accepted);
  show(status.counters.finished, s.counters.finished);
  show(status.counters.aborted, s.counters.aborted);
  show(status.counters.failed, s.counters.failed);
  show(status.counters.prefilled, s.counters.prefilled);
  show(status.counters.generated, s.counters.generated);
  show(status.counters.preempted, s.counters.preempted);
  show(status.counters.nonfinite, s.counters.nonfinite);
  show(status.counters.malformed, s.counters.malformed);
  show(status.counters.reused, s.counters.reused);
  show(status.counters.evicted, s.counters.evicted);
  show(status.counters.exhausted, s.counters.exhausted);
  show(status.counters.epochs, s.counters.epochs);
  show(status.counters.attention_bytes, s.counters.attention_bytes);
  show(status.counters.attention_merge_bytes, s.counters.attention_merge_bytes);
  show(status.counters.attention_items, s.counters.attention_items);
  show(status.counters.attention_launches, s.counters.attention_launches);
  show(status.counters.split_steps, s.counters.split_steps);
  show(status.counters.workqueue_steps, s.counters.workqueue_steps);
  show(status.counters.flashinfer_steps, s.counters.flashinfer_steps);
  show(status.heartbeat, ++s.heartbeat);
}

template <class Team>
DP_FN void schedule(Team& team, State& s, StepBuffers& b, RingMemory& m) {
  retire(team, s, b, m);
  poll(team, s, b, m);
  admit(team, s, b);
  lay_out(team, s, b);
  if (team.leader()) report(s, m.status);
}

}  // namespace dp
