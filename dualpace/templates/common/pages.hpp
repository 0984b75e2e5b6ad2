// KV pages: how many a row needs, taking them, giving them back.
//
// The rule that makes allocation never fail: what all running rows have yet to compute (`demand`) fits the pages of
// each group that no row holds. Admission keeps it, decoding breaks it by a page at a time, preemption restores it.
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
    if (cfg::kWindow[g] != 0) continue;
    tokens = least(tokens, most(cfg::kPages[g], kOffload ? kHostPages : 0) * cfg::kPageSize);
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
  if (has_slots(group, slot)) return 0;
  const int32_t q = s.rows.request[slot];
  return demand(group, s.rows.first[group][slot], s.rows.end[group][slot], s.requests.computed[q],
                s.requests.length[q]);
}

// Pages that no row holds.
DP_FN inline int32_t available(const State& s, int group) { return s.pages.free[group].count + s.pages.idle[group]; }

// What a page is when it begins another life.
DP_FN inline void reset_page(const State& s, int group, int32_t page) {
  auto& state = s.pages.state[group];
  state.residency[page] = Residency::kFree;
  state.holders[page] = 0;
  state.prefix[page] = kNone;
  ++state.generation[page];
}

// The leader's, as the one below.
DP_FN inline void free_page(State& s, int group, int32_t page) {
  reset_page(s, group, page);
  auto& free = s.pages.free[group];
  free.item[free.count++] = page;
}

DP_FN inline void free_idle_page(State& s, int group, int32_t page) {
  --s.pages.idle[group];
  ++s.counters.evicted;
  free_page(s, group, page);
}

DP_FN inline int32_t* bucket_of(const State& s, uint64_t key) { return &s.prefixes.bucket[key % Prefixes::kBuckets]; }

// Takes an entry out of its bucket, which nobody else looks at meanwhile.
DP_FN inline void unlink_entry(const State& s, int32_t entry) {
  Prefixes& prefixes = s.prefixes;
  int32_t* link = bucket_of(s, prefixes.key[entry]);
  while (*link != entry) link = &prefixes.next[*link];
  *link = prefixes.next[entry];
}

// The leader's. An entry leaves the prefix index, and its pages, which are all idle, are free.
DP_FN inline void forget_entry(State& s, int32_t entry) {
  unlink_entry(s, entry);
  for (int g = 0; g < cfg::kGroups; ++g) {
    if (s.prefixes.page[g][entry] != kNone) free_idle_page(s, g, s.prefixes.page[g][entry]);
  }
}

// The pages of `group` that `page_of` gives for k < n, all idle, leave the prefix index and are free. Those of the
// anchor group take their entries with them; the other groups' pages there are idle too, because who holds one of them
// holds the anchor's.
template <class Team, class PageOf>
DP_FN void forget_pages(Team& team, State& s, int group, int n, PageOf page_of) {
  const bool entries = cfg::kGroups == 1 || group == kAnchor;
  int32_t* list = s.work.sweep;
  if (entries) {
    team.each(n, [&](int k) { list[k] = static_cast<int32_t>(s.prefixes.key[page_of(k)] % Prefixes::kBuckets); });
    team.sync();
    // The first of those that share a bucket sees to all of them.
    team.each(n, [&](int k) {
      for (int other = 0; other < k; ++other) {
        if (list[other] == list[k]) return;
      }
      for (int other = k; other < n; ++other) {
        if (list[other] == list[k]) unlink_entry(s, page_of(other));
      }
    });
    team.sync();
  }
  for (int g = 0; g < cfg::kGroups; ++g) {
    if (!entries && g != group) continue;
    auto& free = s.pages.free[g];
    const auto page_there = [&](int k) -> int32_t& {
      return s.prefixes.page[g][entries ? page_of(k) : s.pages.state[g].prefix[page_of(k)]];
    };
    team.each(n, [&](int k) { list[k] = page_there(k) != kNone ? 1 : 0; });
    const int32_t freed = team.scan(list, n);
    team.each(n, [&](int k) {
      int32_t& there = page_there(k);
      if (there == kNone) return;
      free.item[free.count + list[k]] = there;
      reset_page(s, g, there);
      if (!entries) there = kNone;
    });
    team.sync();
    if (team.leader()) {
      free.count += freed;
      s.pages.idle[g] -= freed;
      s.counters.evicted += static_cast<uint64_t>(freed);
    }
  }
}

// Frees `wanted` idle pages, of which there are as many. The clock's hand passes over those found since its last
// turn. It goes down while rows take pages going up, so a chain tends to lose its end first, and the rest is still
// found.
template <class Team>
DP_RARE void evict(Team team, State s, int group, int wanted) {
  auto& state = s.pages.state[group];
  Work& w = s.work;
  const int pool = cfg::kPages[group], window = least(kSweep, pool);
  while (wanted > 0) {
    const int32_t hand = s.pages.hand[group];
    const auto at = [&](int i) { return hand - i >= 0 ? hand - i : hand - i + pool; };
    const auto idle = [&](int i) { return state.prefix[at(i)] != kNone && state.holders[at(i)] == 0; };
    team.each(window, [&](int i) { w.sweep[i] = idle(i) && !state.recent[at(i)] ? 1 : 0; });
    const int taken = least(team.scan(w.sweep, window), wanted);
    team.each(window, [&](int i) {
      if (idle(i) && !state.recent[at(i)] && w.sweep[i] < taken) w.victim[w.sweep[i]] = i;
    });
    team.sync();
    const int passed = taken == wanted ? w.victim[taken - 1] + 1 : window;
    team.each(passed, [&](int i) { state.recent[at(i)] = false; });
    team.sync();
    forget_pages(team, s, group, taken, [&](int k) { return at(w.victim[k]); });
    if (team.leader()) s.pages.hand[group] = at(passed);
    wanted -= taken;
    team.sync();
  }
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

// Gives back the pages of `group` before upto(k) of each row slots[k]; upto lies within what the row holds. Rows that
// go together may share pages, so holders are counted down atomically: a count depends on no order.
template <class Team, class Upto>
DP_FN void drop_pages(Team& team, State& s, StepBuffers& b, int group, const int32_t* slots, int n, Upto upto) {
  int32_t *offset = s.work.a, *own_offset = s.work.c;
  auto& free = s.pages.free[group];
  auto& state = s.pages.state[group];
  int32_t* first = s.rows.first[group];
  // The row's own pages come after those in the index.
  const auto own = [&](int k) { return least(upto(k), most(first[slots[k]], s.rows.indexed[slots[k]])); };
  team.each(n, [&](int k) {
    offset[k] = own(k) - first[slots[k]];
    own_offset[k] = upto(k) - own(k);
  });
  const int32_t indexed = team.scan(offset, n), freed = team.scan(own_offset, n);
  if (indexed + freed == 0) return;
  const uint64_t idle = team.reduce(
      indexed,
      [&](int i) {
        const int k = list_of(offset, n, i);
        int32_t& entry = b.table[group][slots[k]][first[slots[k]] + i - offset[k]];
        const int32_t page = entry;
        entry = kNone;
        return uint64_t{add(state.holders[page], -1) == 1 ? 1u : 0u};
      },
      Sum());
  team.each(freed, [&](int i) {
    const int k = list_of(own_offset, n, i);
    int32_t& entry = b.table[group][slots[k]][own(k) + i - own_offset[k]];
    free.item[free.count + freed - 1 - i] = entry;
    state.residency[entry] = Residency::kFree;
    state.holders[entry] = 0;
    ++state.generation[entry];
    entry = kNone;
  });
  team.sync();
  team.each(n, [&](int k) { first[slots[k]] = upto(k); });
  if (team.leader()) {
    free.count += freed;
    s.pages.idle[group] += static_cast<int32_t>(idle);
  }
  team.sync();
}

// Gives each row slots[k] for which nth(k) is not kNone one more page of `group`, the nth(k)-th of `total`. The caller
// knows that there are as many, free or idle.
template <class Team, class Nth>
DP_FN void take_page_each(Team& team, State& s, StepBuffers& b, int group, const int32_t* slots, int n, int total,
                          Nth nth) {
  if (total == 0) return;
  auto& free = s.pages.free[group];
  auto& state = s.pages.state[group];
  if (total > free.count) evict(team, s, group, total - free.count);
  const int32_t top = free.count - 1;
  team.each(n, [&](int k) {
    const int32_t place = nth(k);
    if (place == kNone) return;
    const int32_t slot = slots[k], page = free.item[top - place];
    b.table[group][slot][s.rows.end[group][slot]++] = page;
    s.rows.page[group][slot] = page;
    state.residency[page] = Residency::kFilling;
    state.holders[page] = 1;
  });
  team.sync();
  if (team.leader()) free.count -= total;
}

// Gives each row slots[k] `wanted(k)` more pages of `group`. The caller knows that there are as many, free or idle.
template <class Team, class Wanted>
DP_FN void take_pages(Team& team, State& s, StepBuffers& b, int group, const int32_t* slots, int n, Wanted wanted) {
  int32_t* offset = s.work.a;
  auto& free = s.pages.free[group];
  auto& state = s.pages.state[group];
  int32_t* end = s.rows.end[group];
  team.each(n, [&](int k) { offset[k] = wanted(k); });
  const int32_t total = team.scan(offset, n);
  if (total == 0) return;
  if (total > free.count) evict(team, s, group, total - free.count);
  team.each(total, [&](int i) {
    const int k = list_of(offset, n, i);
    const int32_t page = free.item[free.count - 1 - i];
    b.table[group][slots[k]][end[slots[k]] + i - offset[k]] = page;
    state.residency[page] = Residency::kFilling;
    state.holders[page] = 1;
  });
  team.sync();
  team.each(n, [&](int k) {
    const int32_t slot = slots[k], taken = (k + 1 < n ? offset[k + 1] : total) - offset[k];
    end[slot] += taken;
    if (taken > 0) s.rows.page[group][slot] = b.table[group][slot][end[slot] - 1];
  });
  if (team.leader()) free.count -= total;
  team.sync();
}

// Gives back the history pages of the requests work.request[0..n), none of which is fresh.
template <class Team>
DP_RARE void drop_history(Team team, State s, int n) {
  int32_t *list = s.work.request, *offset = s.work.offset;
  team.each(n, [&](int k) { offset[k] = s.requests.history_count[list[k]]; });
  const int32_t total = team.scan(offset, n);
  team.each(total, [&](int i) {
    const int k = list_of(offset, n, i);
    s.history.free.item[s.history.free.count + i] = s.requests.history[list[k]][i - offset[k]];
  });
  team.sync();
  if (team.leader()) {
    s.history.free.count += total;
    for (int k = 0; k < n; ++k) {
      s.rings[s.requests.ring[list[k]]].lives -= s.requests.history_count[list[k]];
      s.requests.history_count[list[k]] = 0;
    }
  }
  team.sync();
}

}  // namespace dp
