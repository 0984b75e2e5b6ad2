// KV pages: how many a row needs, taking them, giving them back.
//
// The rule that makes allocation never fail: what all running rows have yet to compute fits the free pages of each
// group
// (`demand`). Admission keeps it, decoding breaks it by a page at a time, preemption restores it.
#pragma once
#include "common/state.hpp"
#include "common/team.hpp"

namespace dp {

DP_FN constexpr int pages_for(int tokens) { return (tokens + cfg::kPageSize - 1) / cfg::kPageSize; }

// The most pages that so many consecutive positions touch.
DP_FN constexpr int pages_touched(int positions) { return (positions + cfg::kPageSize - 2) / cfg::kPageSize + 1; }

// The longest prefill chunk whose window and own tokens fit every windowed pool, for a row that is alone.
constexpr int longest_chunk() {
  int chunk = least(cfg::kPrefillChunk, cfg::kMaxStepTokens);
  for (int g = 0; g < cfg::kGroups; ++g) {
    if (cfg::kWindow[g] > 0 && cfg::kPages[g] < pages_for(cfg::kMaxContext)) {
      chunk = least(chunk, (cfg::kPages[g] - 1) * cfg::kPageSize + 2 - cfg::kWindow[g]);
    }
  }
  return chunk;
}
constexpr int kChunk = longest_chunk();
static_assert(kChunk > 0, "a window and one token need more pages than its pool has: raise target.kv_budget");

// The longest history that a row which is alone can have.
constexpr int longest_history() {
  int tokens = cfg::kMaxContext;
  for (int g = 0; g < cfg::kGroups; ++g) {
    if (cfg::kWindow[g] == 0) tokens = least(tokens, cfg::kPages[g] * cfg::kPageSize);
  }
  return tokens;
}
constexpr int kLongestHistory = longest_history();

// The first page that queries from position `computed` on look at.
DP_FN inline int first_needed(int group, int computed) {
  return cfg::kWindow[group] == 0 ? 0 : most(0, computed + 1 - cfg::kWindow[group]) / cfg::kPageSize;
}

// Pages that a row holding [first, end) will yet take at the same time to compute its `length` tokens.
DP_FN inline int demand(int group, int first, int end, int computed, int length) {
  const int wanted = pages_for(length) - end;
  if (cfg::kWindow[group] == 0) return wanted;
  const int together = pages_touched(cfg::kWindow[group] - 1 + least(length - computed, kChunk));
  return most(0, least(wanted, together - (end - first)));
}

DP_FN inline int row_demand(const State& s, int group, int32_t slot) {
  const int32_t q = s.rows.request[slot];
  return demand(group, s.rows.first[group][slot], s.rows.end[group][slot], s.requests.computed[q],
                s.requests.length[q]);
}

DP_FN inline int row_held(const State& s, int group, int32_t slot) {
  return s.rows.end[group][slot] - s.rows.first[group][slot];
}

// Which of n lists the item is of, by the exclusive prefix sums of their lengths.
DP_FN inline int list_of(const int32_t* offsets, int n, int item) {
  int low = 0, high = n;
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    (offsets[middle] <= item ? low : high) = middle;
  }
  return low;
}

// Gives back the pages of `group` before upto(k) of each row slots[k]; upto lies within what the row holds.
template <class Team, class Upto>
DP_FN void drop_pages(Team& team, State& s, StepBuffers& b, int group, const int32_t* slots, int n, Upto upto) {
  int32_t* offset = s.work.a;
  auto& pages = s.pages.free[group];
  auto& state = s.pages.state[group];
  int32_t* first = s.rows.first[group];
  team.each(n, [&](int k) { offset[k] = upto(k) - first[slots[k]]; });
  const int32_t total = team.scan(offset, n);
  if (total == 0) return;
  team.each(total, [&](int i) {
    const int k = list_of(offset, n, i);
    int32_t& entry = b.table[group][slots[k]][first[slots[k]] + i - offset[k]];
    pages.item[pages.count + i] = entry;
    state.residency[entry] = Residency::kFree;
    ++state.generation[entry];
    entry = kNone;
  });
  team.sync();
  team.each(n, [&](int k) { first[slots[k]] = upto(k); });
  if (team.leader()) pages.count += total;
  team.sync();
}

// Gives each row slots[k] `wanted(k)` more pages of `group`. The caller knows that there are as many.
template <class Team, class Wanted>
DP_FN void take_pages(Team& team, State& s, StepBuffers& b, int group, const int32_t* slots, int n, Wanted wanted) {
  int32_t* offset = s.work.a;
  auto& pages = s.pages.free[group];
  int32_t* end = s.rows.end[group];
  team.each(n, [&](int k) { offset[k] = wanted(k); });
  const int32_t total = team.scan(offset, n);
  if (total == 0) return;
  team.each(total, [&](int i) {
    const int k = list_of(offset, n, i);
    const int32_t page = pages.item[pages.count - 1 - i];
    b.table[group][slots[k]][end[slots[k]] + i - offset[k]] = page;
    s.pages.state[group].residency[page] = Residency::kFilling;
  });
  team.sync();
  team.each(n, [&](int k) { end[slots[k]] += (k + 1 < n ? offset[k + 1] : total) - offset[k]; });
  if (team.leader()) pages.count -= total;
  team.sync();
}

// Gives back the history pages of the requests work.request[0..n).
template <class Team>
DP_FN void drop_history(Team& team, State& s, int n) {
  int32_t *list = s.work.request, *offset = s.work.offset;
  team.each(n, [&](int k) { offset[k] = s.requests.history_count[list[k]]; });
  const int32_t total = team.scan(offset, n);
  team.each(total, [&](int i) {
    const int k = list_of(offset, n, i);
    s.history.free.item[s.history.free.count + i] = s.requests.history[list[k]][i - offset[k]];
  });
  team.sync();
  team.each(n, [&](int k) { s.requests.history_count[list[k]] = 0; });
  if (team.leader()) s.history.free.count += total;
  team.sync();
}

}  // namespace dp
