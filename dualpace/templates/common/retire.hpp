// First phase of a step: what the last step computed and sampled becomes history, events and sealed pages.
#pragma once
#include "common/leave.hpp"
#include "common/pace.hpp"
#include "common/prefix.hpp"
#include "common/publish.hpp"
#include "common/state.hpp"
#include "common/team.hpp"

namespace dp {

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
    counters.host_steps += route == Route::kHost ? 1 : 0;
  }
}

// Whether and why a request ends with a sampled token, which lengthens its history. Loads come first: none waits for
// another.
DP_FN inline Finish take_sample(State& s, int32_t slot, int32_t q, int32_t token) {
  Requests& requests = s.requests;
  const int32_t length = requests.length[q], shortest = requests.shortest[q], longest = requests.longest[q];
  const int32_t stops = requests.stop_count[q];
  prefetch(requests.tag[q]);
  prefetch(requests.prompt[q]);
  prefetch(requests.cached[q]);
  prefetch(requests.sampling[q].logprobs);
  bool stopped = false;
  for (int i = 0; i < stops; ++i) stopped |= requests.stop[q][i] == token;
  if (token < 0 || token >= s.vocabulary) return Finish::kError;
  if (length == longest) return Finish::kLength;  // nobody wants a token
  requests.length[q] = length + 1;
  s.rows.token[slot] = token;
  prefetch(requests.history[q][length / cfg::kHistoryPage]);
  return stopped && length + 1 > shortest ? Finish::kStop : length + 1 >= longest ? Finish::kLength : Finish::kNone;
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

// Work::said. The samples of a row's prompt are neighbours; the first of them that is no number ends the request, and
// neither those after it nor a token drawn are said.
template <class Team>
DP_RARE void judge(Team team, State s, const StepBuffers& b) {
  Work& w = s.work;
  const int samples = static_cast<int>(b.samples), scored = static_cast<int>(b.scored);
  const auto request = [&](int i) { return s.rows.request[b.sample_slot[i]]; };
  team.each(scored, [&](int i) {
    w.said[i] = true;
    for (int k = i - 1; k >= 0 && b.sample_slot[k] == b.sample_slot[i]; --k) w.said[i] = w.said[i] && b.sampled[k] >= 0;
    if (!w.said[i] || b.sampled[i] >= 0) return;
    s.requests.finish[request(i)] = Finish::kError;
    s.rows.leave[b.sample_slot[i]] = Leave::kDone;
  });
  team.sync();
  team.each(samples - scored, [&](int k) {
    const int i = scored + k;
    w.said[i] = s.requests.finish[request(i)] == Finish::kNone;
  });
  team.sync();
}

// Samples that gave no token were counted as if they had, and requests that failed as if they had finished.
template <class Team>
DP_RARE void discount(Team team, State s, const StepBuffers& b) {
  const int samples = static_cast<int>(b.samples), scored = static_cast<int>(b.scored);
  const auto request = [&](int i) { return s.rows.request[b.sample_slot[i]]; };
  const auto count = [&](auto counts) {
    return team.reduce(samples, [&](int i) { return uint64_t{counts(i) ? 1u : 0u}; }, Sum());
  };
  const auto said = [&](int i) { return scored == 0 || s.work.said[i]; };
  const uint64_t mute = count([&](int i) { return i >= scored && (!said(i) || said_of(s, b, i).token == kNone); });
  const uint64_t failed = count([&](int i) {
    return said(i) && (i < scored ? b.sampled[i] < 0 : s.requests.finish[request(i)] == Finish::kError);
  });
  if (!team.leader()) return;
  s.counters.generated -= mute;
  s.counters.nonfinite += failed;
  s.counters.failed += failed;
  s.counters.finished -= failed;
}

// Whose records a request's are; nobody's if its epoch has ended since, in a step of another lane.
DP_FN inline int ring_of(const State& s, int32_t q) {
  const int r = s.requests.ring[q];
  return kLaneCount == 1 || s.requests.epoch[q] == s.rings[r].epoch ? r : kNone;
}

// Tokens that were drawn although blocks were left out of their attention, before records say so.
template <class Team>
DP_RARE void count_left_out(Team team, State s, const StepBuffers& b) {
  team.each(static_cast<int>(b.rows), [&](int r) {
    const SlowRow& row = s.recall->row[b.row_slot[r]];
    if (row.sparse != 0 && candidates(row.pages) > kChosen) ++s.requests.left_out[s.rows.request[b.row_slot[r]]];
  });
  team.sync();
}

// Writes the records of the samples of kRingsTogether rings from `first` on.
template <class Team>
DP_FN void write_samples(Team& team, State& s, const StepBuffers& b, RingMemory& m, int first) {
  team.each(static_cast<int>(b.samples), [&](int i) {
    if (b.scored > 0 && !s.work.said[i]) return;
    const int32_t q = s.rows.request[b.sample_slot[i]];
    const int r = ring_of(s, q);
    if (r < first || r >= first + kRingsTogether) return;
    int32_t nth = 0;
    for (int k = 0; k < kRingsTogether; ++k) nth = first + k == r ? s.work.retired[i].of[kRecordsOfRing + k] : nth;
    write_record(s, m.rings[r], s.rings[r], nth, q, said_of(s, b, i));
  });
}

template <class Team>
DP_FN void retire(Team& team, State& s, StepBuffers& b, RingMemory& m) {
  Requests& requests = s.requests;
  const int rows = static_cast<int>(b.rows), samples = static_cast<int>(b.samples), scored = static_cast<int>(b.scored);
  RetireCounts* counts = s.work.retired;
  if (scored > 0) judge(team, s, b);
  const auto said = [&](int i) { return scored == 0 || s.work.said[i]; };
  const auto count_ring = [&](int i, int first, int ring) {
    for (int k = 0; k < kRingsTogether; ++k) counts[i].of[kRecordsOfRing + k] = ring == first + k ? 1 : 0;
  };
  if (is_slow(lane_of(b))) count_left_out(team, s, b);
  team.each(most(rows, samples), [&](int i) {
    const int32_t sample_slot = b.sample_slot[i], token = b.sampled[i];
    counts[i] = {};
    if (i < rows) {
      const int32_t slot = b.row_slot[i], context = b.context[i], sealed = sealed_after(b, i) - sealed_before(b, i);
      const int32_t q = s.rows.request[slot];
      requests.computed[q] = context;
      if (requests.scored[q] < context) requests.scored[q] = context;
      counts[i].of[kSealedPages] = sealed;
    }
    if (i >= samples) return;
    const int32_t q = s.rows.request[sample_slot], ring = ring_of(s, q);
    const bool heard = said(i);
    Finish finish = token < 0 ? Finish::kError : Finish::kNone;
    if (heard && i >= scored) {
      finish = take_sample(s, sample_slot, q, token);
      requests.finish[q] = finish;
      if (finish != Finish::kNone) s.rows.leave[sample_slot] = Leave::kDone;
    }
    const bool ended = heard && finish != Finish::kNone;
    counts[i].of[kEndedSamples] = ended ? 1 : 0;
    counts[i].of[kMuteSamples] = !heard || (ended && said_of(s, b, i).token == kNone) ? 1 : 0;
    count_ring(i, 0, heard ? ring : kNone);
  });
  const RetireCounts total = team.scan(counts, most(rows, samples));
  write_samples(team, s, b, m, 0);
  team.each(samples - scored, [&](int k) {
    const int i = scored + k;
    const int32_t q = s.rows.request[b.sample_slot[i]];
    if (said(i) && said_of(s, b, i).token != kNone) history_token(s, q, requests.length[q] - 1) = b.sampled[i];
  });
  if (total.of[kSealedPages] > 0) seal(team, s, b, total.of[kSealedPages]);
  RetireCounts written = total;
  for (int first = 0;;) {
    team.sync();
    if (team.leader()) {
      for (int k = 0; k < least(kRingsTogether, cfg::kRings - first); ++k) {
        s.rings[first + k].token_written += static_cast<uint32_t>(written.of[kRecordsOfRing + k]);
      }
    }
    first += kRingsTogether;
    if (first >= cfg::kRings) break;
    team.each(samples,
              [&](int i) { count_ring(i, first, said(i) ? ring_of(s, s.rows.request[b.sample_slot[i]]) : kNone); });
    written = team.scan(counts, samples);
    write_samples(team, s, b, m, first);
  }
  const auto ended = static_cast<uint64_t>(total.of[kEndedSamples]);
  if (team.leader()) {
    if (rows > 0) count_attention(s.counters, b);
    s.counters.generated += static_cast<uint64_t>(samples - scored);
    s.counters.finished += ended;
  }
  if (is_slow(lane_of(b)) && rows > 0 && team.leader()) measure(s, b);
  if (total.of[kMuteSamples] > 0) discount(team, s, b);
  if (ended > 0) leave_rows(team, s, b);
}

}  // namespace dp
