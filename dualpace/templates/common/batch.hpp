// Last phase of a step: which tokens run, and the step buffers that say so. Decode rows come first, a token each; what
// is left of the budget goes to prefill, in order of admission.
#pragma once
#include "common/pages.hpp"
#include "common/score.hpp"
#include "common/state.hpp"
#include "common/team.hpp"

namespace dp {

static_assert(cfg::kMaxStepTokens >= cfg::kMaxBatch, "a step takes a token of every row");

struct Batch {
  int32_t decode_rows, rows, tokens, samples, scored;

  DP_FN bool mixed() const { return rows > decode_rows; }

  // The least step program that holds it; there is one for any batch.
  DP_FN uint32_t program() const {
    uint32_t p = 0;
    for (; p + 1 < cfg::kPrograms; ++p) {
      const cfg::StepProgram& program = cfg::kProgram[p];
      if (program.mixed == mixed() && rows <= program.rows && tokens <= program.tokens) break;
    }
    return p;
  }
};

// Work::chunk, ::row, ::start, ::sample and ::score by position in Rows::running: tokens of each row, its batch row,
// its first token, its sample that a token is drawn from, and the first of its others if the step has any.
template <class Team>
DP_FN Batch choose(Team& team, State& s) {
  Work& w = s.work;
  const int n = s.rows.running_count;
  const auto pending = [&](int i) {
    const int32_t slot = s.rows.running[i], q = s.rows.request[slot];
    return s.rows.paused[slot] ? 0 : s.requests.length[q] - s.requests.computed[q];
  };
  team.each(n, [&](int i) { w.row[i] = pending(i) == 1 ? 1 : 0; });
  const int32_t decode_rows = team.scan(w.row, n);
  const int32_t budget = least(cfg::kPrefillChunk, cfg::kMaxStepTokens - decode_rows);
  team.each(n, [&](int i) { w.chunk[i] = least(pending(i), kChunk); });
  const bool scores = decode_rows < n && ration_scores(team, s);
  team.each(n, [&](int i) { w.start[i] = pending(i) > 1 ? w.chunk[i] : 0; });
  const int32_t wanted = team.scan(w.start, n);
  team.each(n, [&](int i) {
    if (pending(i) > 1) w.chunk[i] = most(0, least(w.chunk[i], budget - w.start[i]));
    w.b[i] = pending(i) > 1 && w.chunk[i] > 0 ? 1 : 0;
  });
  const int32_t prefill_rows = team.scan(w.b, n);
  team.each(n, [&](int i) { w.sample[i] = w.chunk[i] > 1 && w.chunk[i] == pending(i) ? 1 : 0; });
  const int32_t finished_prefills = team.scan(w.sample, n);
  int32_t scored = 0;
  if (scores) {
    team.each(n, [&](int i) {
      const int32_t q = s.rows.request[s.rows.running[i]], computed = s.requests.computed[q];
      w.score[i] = scores_in(s.requests, q, computed, computed + w.chunk[i]);
    });
    scored = team.scan(w.score, n);
  }
  team.each(n, [&](int i) {
    if (pending(i) == 1) {
      w.start[i] = w.row[i];
      w.sample[i] = scored + w.row[i];
    } else {
      w.row[i] = decode_rows + w.b[i];
      w.start[i] += decode_rows;
      w.sample[i] += scored + decode_rows;
    }
  });
  team.sync();
  return {decode_rows, decode_rows + prefill_rows, decode_rows + most(0, least(wanted, budget)),
          scored + decode_rows + finished_prefills, scored};
}

template <class Team>
DP_FN void fill(Team& team, State& s, StepBuffers& b, const Batch& batch) {
  Work& w = s.work;
  team.each(s.rows.running_count, [&](int i) {
    if (w.chunk[i] == 0) return;
    const int32_t slot = s.rows.running[i], q = s.rows.request[slot], r = w.row[i];
    b.row_slot[r] = slot;
    b.query_begin[r] = w.start[i];
    b.context[r] = s.requests.computed[q] + w.chunk[i];
    if (b.context[r] == s.requests.length[q]) {
      b.sample_index[w.sample[i]] = w.start[i] + w.chunk[i] - 1;
      b.sample_slot[w.sample[i]] = slot;
    }
  });
  team.each(batch.scored, [&](int k) {
    const int i = list_of(w.score, s.rows.running_count, k);
    const int32_t slot = s.rows.running[i], q = s.rows.request[slot], computed = s.requests.computed[q];
    const int32_t position = first_score(s.requests, q, computed) + k - w.score[i];
    b.sample_index[k] = w.start[i] + position - computed;
    b.sample_slot[k] = slot;
  });
  team.sync();
  team.each(batch.tokens, [&](int t) {
    const int prefill = batch.rows - batch.decode_rows;
    const int r =
        t < batch.decode_rows ? t : batch.decode_rows + list_of(b.query_begin + batch.decode_rows, prefill, t);
    const int32_t slot = b.row_slot[r], q = s.rows.request[slot];
    const int32_t position = s.requests.computed[q] + t - b.query_begin[r];
    b.token[t] = history_token(s, q, position);
    b.position[t] = position;
    b.token_row[t] = r;
    for (int g = 0; g < cfg::kGroups; ++g) {
      const int32_t page = b.table[g][slot][position / cfg::kPageSize];
      b.slot[g][t] = page * cfg::kPageSize + position % cfg::kPageSize;
    }
  });
  if (team.leader()) {
    b.query_begin[batch.rows] = batch.tokens;
    b.kind = static_cast<uint32_t>(batch.rows == 0 ? StepKind::kIdle
                                   : batch.mixed() ? StepKind::kMixed
                                                   : StepKind::kDecode);
    b.rows = static_cast<uint32_t>(batch.rows);
    b.tokens = static_cast<uint32_t>(batch.tokens);
    b.samples = static_cast<uint32_t>(batch.samples);
    b.program = batch.program();
    b.scored = static_cast<uint32_t>(batch.scored);
    s.step += batch.rows > 0 ? 1 : 0;
    b.step = s.step;
    s.counters.prefilled += static_cast<uint64_t>(batch.tokens - batch.decode_rows);
  }
  team.sync();
}

template <class Team>
DP_FN void lay_out(Team& team, State& s, StepBuffers& b) {
  const Batch batch = choose(team, s);
  for (int g = 0; g < cfg::kGroups; ++g) {
    take_pages(team, s, b, g, s.rows.running, s.rows.running_count, [&](int i) {
      const int32_t slot = s.rows.running[i], chunk = s.work.chunk[i];
      if (chunk == 0) return 0;
      return pages_for(s.requests.computed[s.rows.request[slot]] + chunk) - s.rows.end[g][slot];
    });
  }
  fill(team, s, b, batch);
}

}  // namespace dp
