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

// What the record of a sample says.
DP_FN inline Said said_of(const State& s, const StepBuffers& b, int i) {
  const int32_t q = s.rows.request[b.sample_slot[i]];
  if (i < static_cast<int>(b.scored)) {
    const int32_t position = b.position[b.sample_index[i]] + 1;
    return b.sampled[i] < 0 ? kNothing : Said{history_token(s, q, position), position, b.logprob[i], &b.top[i]};
  }
  const bool none = s.requests.finish[q] == Finish::kError || s.requests.length[q] == s.requests.prompt[q];
  return none ? kNothing : Said{b.sampled[i], kNone, b.logprob[i], &b.top[i]};
}

// Work::said: which samples have a record. The samples of a row's prompt are neighbours; the first of them that is no
// number ends the request, and neither those after it nor a token drawn are said.
template <class Team>
DP_FN void judge(Team& team, State& s, const StepBuffers& b, int samples, int scored) {
  Work& w = s.work;
  const auto request = [&](int i) { return s.rows.request[b.sample_slot[i]]; };
  team.each(scored, [&](int i) {
    w.said[i] = true;
    for (int k = i - 1; k >= 0 && b.sample_slot[k] == b.sample_slot[i]; --k) w.said[i] = w.said[i] && b.sampled[k] >= 0;
    if (!w.said[i] || b.sampled[i] >= 0) return;
    s.requests.finish[request(i)] = Finish::kError;
    s.rows.leave[b.sample_slot[i]] = Leave::kDone;
  });
  team.sync();
  team.each(samples, [&](int i) {
    if (i >= scored) w.said[i] = s.requests.finish[request(i)] == Finish::kNone;
  });
  team.sync();
}

template <class Team>
DP_FN void retire(Team& team, State& s, StepBuffers& b, RingMemory& m) {
  Requests& requests = s.requests;
  const int rows = static_cast<int>(b.rows), samples = static_cast<int>(b.samples), scored = static_cast<int>(b.scored);
  team.each(rows, [&](int r) {
    const int32_t q = s.rows.request[b.row_slot[r]];
    requests.computed[q] = b.context[r];
    requests.scored[q] = most(requests.scored[q], b.context[r]);
  });
  seal(team, s, b);
  if (scored > 0) judge(team, s, b, samples, scored);
  const auto said = [&](int i) { return scored == 0 || s.work.said[i]; };
  team.each(samples, [&](int i) {
    if (i < scored || !said(i)) return;
    const int32_t slot = b.sample_slot[i], q = s.rows.request[slot], token = b.sampled[i];
    if (token < 0 || token >= s.vocabulary) {
      requests.finish[q] = Finish::kError;
    } else if (requests.length[q] == requests.longest[q]) {
      requests.finish[q] = Finish::kLength;  // nobody wants a token
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
    const auto of_ring = [&](int i) { return said(i) && requests.ring[s.rows.request[b.sample_slot[i]]] == r; };
    team.each(samples, [&](int i) { nth[i] = of_ring(i) ? 1 : 0; });
    const int32_t total = team.scan(nth, samples);
    team.each(samples, [&](int i) {
      const int32_t q = s.rows.request[b.sample_slot[i]];
      if (!of_ring(i)) return;
      write_record(s, m.rings[r], s.rings[r], nth[i], q, said_of(s, b, i));
    });
    team.sync();
    if (team.leader()) s.rings[r].token_written += static_cast<uint32_t>(total);
  }
  // Three counts of at most 2^20 in one sum.
  static_assert(cfg::kMaxSamples < 1 << 20);
  const uint64_t sums = team.reduce(
      samples,
      [&](int i) {
        const int32_t q = s.rows.request[b.sample_slot[i]];
        if (!said(i) || (i < scored && b.sampled[i] >= 0)) return uint64_t{0};
        const bool failed = requests.finish[q] == Finish::kError, done = requests.finish[q] != Finish::kNone;
        const bool generated = !failed && requests.length[q] > requests.prompt[q];
        return uint64_t{generated ? 1u : 0u} << 40 | uint64_t{done ? 1u : 0u} << 20 | uint64_t{failed ? 1u : 0u};
      },
      Sum());
  if (team.leader()) {
    if (rows > 0) count_attention(s.counters, b);
    const uint64_t failed = sums & 0xFFFFF, done = sums >> 20 & 0xFFFFF;
    s.counters.generated += sums >> 40;
    s.counters.nonfinite += failed;
    s.counters.failed += failed;
    s.counters.finished += done - failed;
  }
  leave_rows(team, s, b);
}

}  // namespace dp
