// First phase of a step: what the last step computed and sampled becomes history, events and sealed pages.
#pragma once
#include "common/leave.hpp"
#include "common/prefix.hpp"
#include "common/publish.hpp"
#include "common/state.hpp"
#include "common/team.hpp"

namespace dp {

DP_FN inline Finish finish_of(const Requests& requests, int32_t q, int32_t token) {
  const int32_t length = requests.length[q];
  if (length > requests.shortest[q]) {
    for (int i = 0; i < requests.stop_count[q]; ++i) {
      if (requests.stop[q][i] == token) return Finish::kStop;
    }
  }
  return length >= requests.longest[q] ? Finish::kLength : Finish::kNone;
}

// The step's attention, in all layers of each group.
DP_FN inline void count_attention(Counters& counters, const StepBuffers& b) {
  for (int g = 0; g < cfg::kGroups; ++g) {
    const AttentionWork& work = b.attention[g];
    const auto layers = static_cast<uint64_t>(cfg::kLayers[g]);
    counters.attention_bytes += layers * work.bytes;
    counters.attention_merge_bytes += layers * work.merge_bytes;
    counters.attention_items += layers * work.items;
    counters.attention_launches += layers * work.launches;
    const auto route = static_cast<Route>(work.route);
    counters.split_steps += route == Route::kSplit ? 1 : 0;
    counters.workqueue_steps += route == Route::kWorkqueue ? 1 : 0;
    counters.flashinfer_steps += route == Route::kFlashinfer ? 1 : 0;
  }
}

template <class Team>
DP_FN void retire(Team& team, State& s, StepBuffers& b, RingMemory& m) {
  Requests& requests = s.requests;
  const int rows = static_cast<int>(b.rows), samples = static_cast<int>(b.samples);
  team.each(rows, [&](int r) { requests.computed[s.rows.request[b.row_slot[r]]] = b.context[r]; });
  seal(team, s, b);
  team.each(samples, [&](int i) {
    const int32_t slot = b.sample_slot[i], q = s.rows.request[slot], token = b.sampled[i];
    if (token < 0 || token >= s.vocabulary) {
      requests.finish[q] = Finish::kError;
    } else {
      history_token(s, q, requests.length[q]) = token;
      ++requests.length[q];
      requests.finish[q] = finish_of(requests, q, token);
    }
    if (requests.finish[q] != Finish::kNone) s.rows.leave[slot] = Leave::kDone;
  });
  team.sync();
  for (int r = 0; r < cfg::kRings; ++r) {
    if (s.rings[r].rows == 0) continue;
    int32_t* nth = s.work.a;
    const auto of_ring = [&](int i) { return requests.ring[s.rows.request[b.sample_slot[i]]] == r; };
    team.each(samples, [&](int i) { nth[i] = of_ring(i) ? 1 : 0; });
    const int32_t total = team.scan(nth, samples);
    team.each(samples, [&](int i) {
      const int32_t q = s.rows.request[b.sample_slot[i]];
      if (!of_ring(i)) return;
      const bool failed = requests.finish[q] == Finish::kError;
      write_record(s, m.rings[r], s.rings[r], nth[i], q,
                   failed ? kNothing : Said{b.sampled[i], b.logprob[i], &b.top[i]});
    });
    team.sync();
    if (team.leader()) s.rings[r].token_written += static_cast<uint32_t>(total);
  }
  const uint64_t failed = team.reduce(
      samples,
      [&](int i) { return uint64_t{requests.finish[s.rows.request[b.sample_slot[i]]] == Finish::kError ? 1u : 0u}; },
      Sum());
  const uint64_t done = team.reduce(
      samples,
      [&](int i) { return uint64_t{requests.finish[s.rows.request[b.sample_slot[i]]] != Finish::kNone ? 1u : 0u}; },
      Sum());
  if (team.leader()) {
    if (rows > 0) count_attention(s.counters, b);
    s.counters.generated += static_cast<uint64_t>(samples) - failed;
    s.counters.nonfinite += failed;
    s.counters.failed += failed;
    s.counters.finished += done - failed;
  }
  leave_rows(team, s, b);
}

}  // namespace dp
