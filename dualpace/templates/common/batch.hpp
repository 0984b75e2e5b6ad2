// Last phase of a step: which tokens run, and the step buffers that say so. Decode rows come first, a token each; what
// is left of the budget goes to prefill, in order of admission.
#pragma once
#include "common/pages.hpp"
#include "common/residency.hpp"
#include "common/score.hpp"
#include "common/state.hpp"
#include "common/team.hpp"

namespace dp {

static_assert(cfg::kMaxStepTokens >= cfg::kMaxBatch, "a step takes a token of every row");

struct Batch {
  int32_t decode_rows, rows, tokens, samples, scored;
  ChosenCounts counts;

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

// Whether the next token of the row at a position in Rows::running is the first of a page.
DP_FN inline bool begins_page(const State& s, int group, int i) {
  const int32_t slot = s.rows.running[i];
  return pages_for(s.requests.computed[s.rows.request[slot]] + 1) > s.rows.end[group][slot];
}

// Work::chunk, ::row, ::start, ::sample and ::score by position in Rows::running: tokens of each row, its batch row,
// its first token, its sample of those that a token is drawn from, and the first of those of prompts.
template <class Team>
DP_FN Batch choose(Team& team, State& s, int lane) {
  Work& w = s.work;
  const int n = s.rows.running_count;
  const auto pending = [&](int i) {
    const int32_t slot = s.rows.running[i], q = s.rows.request[slot];
    const int32_t wanted = s.requests.length[q] - s.requests.computed[q];
    if (s.rows.paused[slot] || lane_of_row(s, slot) != lane) return 0;
    return is_slow(lane) && slow_tokens(s, slot, wanted) == 0 ? 0 : wanted;
  };
  const auto count = [&](int i) {
    const bool decodes = pending(i) == 1;
    ChosenCounts& counts = w.chosen[i];
    counts.of[kDecodeRows] = decodes ? 1 : 0;
    counts.of[kPrefillTokens] = decodes ? 0 : w.chunk[i];
    for (int g = 0; g < cfg::kGroups; ++g) counts.of[kBegunPages + g] = decodes && begins_page(s, g, i) ? 1 : 0;
  };
  for (int g = 0; g < cfg::kGroups; ++g) {
    const auto& free = s.pages.free[g];
    prefetch(free.item[most(0, free.count - 1 - team.index())]);
  }
  team.each(n, [&](int i) {
    w.chunk[i] = least(pending(i), kChunk);
    if (is_slow(lane) && w.chunk[i] > 0) w.chunk[i] = slow_tokens(s, s.rows.running[i], w.chunk[i]);
    count(i);
  });
  ChosenCounts total = team.scan(w.chosen, n);
  const bool scores = total.of[kPrefillTokens] > 0 && ration_scores(team, s, lane);
  if (scores) {
    team.each(n, count);
    total = team.scan(w.chosen, n);
  }
  const int32_t decode_rows = total.of[kDecodeRows], wanted = total.of[kPrefillTokens];
  const int32_t budget = least(cfg::kPrefillChunk, cfg::kMaxStepTokens - decode_rows);
  team.each(n, [&](int i) {
    const int32_t all = pending(i), decode = w.chosen[i].of[kDecodeRows], first = w.chosen[i].of[kPrefillTokens];
    w.row[i] = w.sample[i] = decode;
    w.start[i] = all == 1 ? decode : decode_rows + first;
    if (all > 1) w.chunk[i] = most(0, least(w.chunk[i], budget - first));
  });
  if (wanted == 0) return {decode_rows, decode_rows, decode_rows, decode_rows, 0, total};
  // Of the others, those that run, and those of them that end their prefill.
  Counts<2>* others = w.prefilled;
  team.each(n, [&](int i) {
    const int32_t all = pending(i);
    others[i] = {{all > 1 && w.chunk[i] > 0 ? 1 : 0, all > 1 && w.chunk[i] == all ? 1 : 0}};
  });
  const Counts<2> prefill = team.scan(others, n);
  const int32_t scored = scores ? count_scores(team, s) : 0;
  team.each(n, [&](int i) {
    if (pending(i) == 1) return;
    w.row[i] = decode_rows + others[i].of[0];
    w.sample[i] = decode_rows + others[i].of[1];
  });
  return {decode_rows,
          decode_rows + prefill.of[0],
          decode_rows + least(wanted, budget),
          scored + decode_rows + prefill.of[1],
          scored,
          total};
}

// `page_of(g)` is where the position's page is.
template <class PageOf>
DP_FN void fill_token(StepBuffers& b, int t, int r, int32_t position, int32_t token, PageOf page_of) {
  b.token[t] = token;
  b.position[t] = position;
  b.token_row[t] = r;
  for (int g = 0; g < cfg::kGroups; ++g) b.slot[g][t] = page_of(g) * cfg::kPageSize + position % cfg::kPageSize;
}

// The samples that come first: those of prompts whose next token is given.
template <class Team>
DP_RARE void fill_scores(Team team, State s, StepBuffers& b, Batch batch) {
  const Work& w = s.work;
  team.each(batch.scored, [&](int k) {
    const int i = list_of(w.score, s.rows.running_count, k);
    const int32_t slot = s.rows.running[i], q = s.rows.request[slot], computed = s.requests.computed[q];
    const int32_t position = first_score(s.requests, q, computed) + k - w.score[i];
    b.sample_index[k] = w.start[i] + position - computed;
    b.sample_slot[k] = slot;
  });
}

template <class Team>
DP_FN void fill(Team& team, State& s, StepBuffers& b, const Batch& batch) {
  Work& w = s.work;
  team.each(s.rows.running_count, [&](int i) {
    const int32_t chunk = w.chunk[i], r = w.row[i], start = w.start[i], sample = batch.scored + w.sample[i];
    if (chunk == 0) return;
    const int32_t slot = s.rows.running[i], q = s.rows.request[slot];
    const int32_t computed = s.requests.computed[q], context = computed + chunk, length = s.requests.length[q];
    b.row_slot[r] = slot;
    b.query_begin[r] = start;
    b.context[r] = context;
    if (context == length) {
      b.sample_index[sample] = start + chunk - 1;
      b.sample_slot[sample] = slot;
    }
    if (r >= batch.decode_rows) return;
    fill_token(b, r, r, computed, s.rows.token[slot], [&](int g) { return s.rows.page[g][slot]; });
  });
  if (batch.scored > 0) fill_scores(team, s, b, batch);
  if (batch.rows > batch.decode_rows) {
    team.sync();
    const int prefill = batch.rows - batch.decode_rows;
    team.each(batch.tokens - batch.decode_rows, [&](int i) {
      const int t = batch.decode_rows + i;
      const int r = batch.decode_rows + list_of(b.query_begin + batch.decode_rows, prefill, t);
      const int32_t slot = b.row_slot[r], q = s.rows.request[slot];
      const int32_t position = s.requests.computed[q] + t - b.query_begin[r];
      fill_token(b, t, r, position, history_token(s, q, position),
                 [&](int g) { return b.table[g][slot][position / cfg::kPageSize]; });
    });
  }
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
  const bool slow = is_slow(lane_of(b));
  if (slow) send_pages(team, s);
  const Batch batch = choose(team, s, lane_of(b));
  const int n = s.rows.running_count;
  if (slow) begin_pages(team, s, b);
  for (int g = 0; g < cfg::kGroups; ++g) {
    if (slow && g == kFull) continue;
    if (batch.mixed()) {
      take_pages(team, s, b, g, s.rows.running, n, [&](int i) {
        const int32_t slot = s.rows.running[i], chunk = s.work.chunk[i];
        if (chunk == 0) return 0;
        return pages_for(s.requests.computed[s.rows.request[slot]] + chunk) - s.rows.end[g][slot];
      });
    } else {
      take_page_each(team, s, b, g, s.rows.running, n, batch.counts.of[kBegunPages + g], [&](int i) {
        const bool begins = s.work.chunk[i] == 1 && begins_page(s, g, i);
        return begins ? s.work.chosen[i].of[kBegunPages + g] : kNone;
      });
    }
  }
  fill(team, s, b, batch);
  const int scored = kLaneCount > 1 && team.leader() ? batch.scored : 0;
  for (int k = 0; k < scored; ++k) ++s.rings[s.requests.ring[s.rows.request[b.sample_slot[k]]]].scores[lane_of(b)];
}

}  // namespace dp
