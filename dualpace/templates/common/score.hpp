// Logprobs of prompts: a position whose logits say how probable the prompt's own next token was is a sample of the step
// like the last one, from which a token is drawn, and has a record of the ring. Room for both is what bounds the chunks
// of a row that asks for them.
#pragma once
#include "common/state.hpp"
#include "common/team.hpp"

namespace dp {

static_assert(cfg::kMaxSamples >= cfg::kMaxBatch, "a step looks at the logits of a token of every row");

// Samples of a step that no row has for itself.
DP_FN inline int32_t spare_samples(const State& s) { return cfg::kMaxSamples - s.rows.running_count; }

// How many of the positions [from, to) of a request give its prompt's next token a logprob. The last position of the
// prompt gives none.
DP_FN inline int32_t scores_in(const Requests& requests, int32_t q, int32_t from, int32_t to) {
  return most(0, least(to, requests.prompt[q] - 1) - most(from, requests.scored[q]));
}

// The first of them.
DP_FN inline int32_t first_score(const Requests& requests, int32_t q, int32_t from) {
  return most(from, requests.scored[q]);
}

// How far a step gets at most that has `scores` samples for the positions of [from, to), and one that is the row's own:
// that one is for the token drawn at the end, or for a score more short of it.
DP_FN inline int32_t reach(const Requests& requests, int32_t q, int32_t from, int32_t to, int32_t scores) {
  return scores >= scores_in(requests, q, from, to) ? to : first_score(requests, q, from) + scores + 1;
}

// How many the chunk of the i-th of the running rows has.
DP_FN inline int32_t chunk_scores(const State& s, int i) {
  const int32_t q = s.rows.request[s.rows.running[i]], computed = s.requests.computed[q];
  return scores_in(s.requests, q, computed, computed + s.work.chunk[i]);
}

// Tokens of a request from position `from` on that steps are to prefill, as far as one can.
DP_FN inline int32_t appetite(const State& s, int32_t q, int32_t from) {
  return reach(s.requests, q, from, s.requests.length[q], spare_samples(s)) - from;
}

// Cuts the chunks in Work::chunk of rows that prefill to the samples and the room in rings that there are for them, in
// order of admission. Each row has one of both for itself. False if no row wants any.
template <class Team>
DP_RARE bool ration_scores(Team team, State s, int lane) {
  Work& w = s.work;
  const int n = s.rows.running_count;
  const auto request = [&](int i) { return s.rows.request[s.rows.running[i]]; };
  const auto wanted = [&](int i) { return chunk_scores(s, i); };
  if (team.reduce(n, [&](int i) { return static_cast<uint64_t>(wanted(i)); }, Sum()) == 0) return false;
  for (int r = 0; r < cfg::kRings; ++r) {
    const int32_t spare = static_cast<int32_t>(s.rings[r].room) - static_cast<int32_t>(s.rings[r].rows[lane]);
    const auto of_ring = [&](int i) { return s.requests.ring[request(i)] == r; };
    team.each(n, [&](int i) { w.a[i] = of_ring(i) ? wanted(i) : 0; });
    team.scan(w.a, n);
    team.each(n, [&](int i) {
      if (of_ring(i)) w.c[i] = most(0, least(wanted(i), spare - w.a[i]));
    });
  }
  team.each(n, [&](int i) { w.a[i] = w.c[i]; });
  team.scan(w.a, n);
  team.each(n, [&](int i) {
    const int32_t q = request(i), computed = s.requests.computed[q];
    const int32_t share = most(0, least(w.c[i], spare_samples(s) - w.a[i]));
    w.chunk[i] = reach(s.requests, q, computed, computed + w.chunk[i], share) - computed;
  });
  team.sync();
  return true;
}

// How many the chunks have; Work::score: those of earlier rows.
template <class Team>
DP_RARE int32_t count_scores(Team team, State s) {
  const int n = s.rows.running_count;
  team.each(n, [&](int i) { s.work.score[i] = chunk_scores(s, i); });
  return team.scan(s.work.score, n);
}

}  // namespace dp
