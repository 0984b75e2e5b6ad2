// Prefix reuse: sealed pages stay findable by the tokens up to their end until their place is needed.
//
// An entry names its parent, the entry of the page before it, so a chain that starts at none stands for exactly one
// sequence of tokens: pages are shared by equal prefixes, whatever keys a frontend writes. Each key has one entry.
#pragma once
#include "common/pages.hpp"
#include "common/prefix_key.hpp"
#include "common/state.hpp"
#include "common/team.hpp"

namespace dp {

DP_FN inline int32_t find_prefix(const State& s, uint64_t key) {
  int32_t entry = *bucket_of(s, key);
  while (entry != kNone && s.prefixes.key[entry] != key) entry = s.prefixes.next[entry];
  return entry;
}

DP_FN inline bool follows(const State& s, int32_t entry, int32_t parent) {
  if (s.prefixes.parent[entry] != parent) return false;
  return parent == kNone || s.prefixes.parent_generation[entry] == s.pages.state[kAnchor].generation[parent];
}

DP_FN inline bool same_tokens(State& s, int32_t entry, int32_t q, int page) {
  const int32_t* history = &history_token(s, q, page * cfg::kPageSize);
  for (int i = 0; i < cfg::kPageSize; ++i) {
    if (s.prefixes.token[entry][i] != history[i]) return false;
  }
  return true;
}

// Reads the tokens of a page, many at a time: f(i, token) in their order.
template <class F>
DP_FN void each_token(const State& s, int32_t q, int page, F f) {
  constexpr int kAhead = least(cfg::kPageSize, 16);
  static_assert(cfg::kPageSize % kAhead == 0);
  const int32_t* history = &history_token(s, q, page * cfg::kPageSize);
  for (int first = 0; first < cfg::kPageSize; first += kAhead) {
    int32_t tokens[kAhead];
    for (int i = 0; i < kAhead; ++i) tokens[i] = history[first + i];
    for (int i = 0; i < kAhead; ++i) f(first + i, tokens[i]);
  }
}

// The leader's. The row's page of each group becomes the one of an entry: its own if the group had none there.
DP_FN inline void join_prefix(State& s, StepBuffers& b, int32_t slot, int page, int32_t entry) {
  for (int g = 0; g < cfg::kGroups; ++g) {
    auto& state = s.pages.state[g];
    int32_t& own = b.table[g][slot][page];
    int32_t& there = s.prefixes.page[g][entry];
    if (there == kNone) {
      there = own;
      state.prefix[own] = entry;
      continue;
    }
    if (state.holders[there]++ == 0) --s.pages.idle[g];
    state.recent[there] = true;
    free_page(s, g, own);
    own = there;
  }
}

// The leader's. A page that was just filled gets an entry, or gives way to the one that has it. A row whose page finds
// its key taken, or its parent gone (a window shorter than a page), keeps this page and those after it for itself.
DP_RARE inline void index_page(State s, StepBuffers& b, int32_t slot, int32_t q, int page) {
  if (s.rows.indexed[slot] != page) return;
  Prefixes& prefixes = s.prefixes;
  const int32_t parent = page == 0 ? kNone : b.table[kAnchor][slot][page - 1];
  if (page > 0 && parent == kNone) return;
  const uint64_t key = history_key(s, q, page);
  int32_t entry = find_prefix(s, key);
  if (entry != kNone && !(follows(s, entry, parent) && same_tokens(s, entry, q, page))) {
    if (s.pages.state[kAnchor].holders[entry] > 0) return;
    forget_entry(s, entry);
    entry = kNone;
  }
  if (entry == kNone) {
    entry = b.table[kAnchor][slot][page];
    prefixes.key[entry] = key;
    prefixes.parent[entry] = parent;
    prefixes.parent_generation[entry] = parent == kNone ? 0 : s.pages.state[kAnchor].generation[parent];
    int32_t& first = *bucket_of(s, key);
    prefixes.next[entry] = first;
    first = entry;
    each_token(s, q, page, [&](int i, int32_t token) { prefixes.token[entry][i] = token; });
    for (int g = 0; g < cfg::kGroups; ++g) prefixes.page[g][entry] = kNone;
  }
  join_prefix(s, b, slot, page, entry);
  ++s.rows.indexed[slot];
}

// Full pages of a batch row before and after the forward pass.
DP_FN inline int sealed_before(const StepBuffers& b, int r) { return b.position[b.query_begin[r]] / cfg::kPageSize; }
DP_FN inline int sealed_after(const StepBuffers& b, int r) { return b.context[r] / cfg::kPageSize; }

// The key of a page that its request's tokens go on to.
DP_FN inline uint64_t next_key(const State& s, int32_t q, int page) {
  uint64_t key = page == 0 ? kEmptyPrefix : history_key(s, q, page - 1);
  each_token(s, q, page, [&](int, int32_t token) { key = extend_prefix(key, token); });
  return key;
}

// A page that nothing in the index and nothing else of this step competes with gets an entry.
DP_FN inline void add_entry(State& s, const StepBuffers& b, int32_t slot, int page, uint64_t key) {
  Prefixes& prefixes = s.prefixes;
  const int32_t entry = b.table[kAnchor][slot][page], parent = page == 0 ? kNone : b.table[kAnchor][slot][page - 1];
  int32_t& first = *bucket_of(s, key);
  const int32_t next = first;
  const uint32_t generation = parent == kNone ? 0 : s.pages.state[kAnchor].generation[parent];
  first = entry;
  prefixes.key[entry] = key;
  prefixes.next[entry] = next;
  prefixes.parent[entry] = parent;
  prefixes.parent_generation[entry] = generation;
  each_token(s, s.rows.request[slot], page, [&](int i, int32_t token) { prefixes.token[entry][i] = token; });
  for (int g = 0; g < cfg::kGroups; ++g) {
    const int32_t own = b.table[g][slot][page];
    prefixes.page[g][entry] = own;
    s.pages.state[g].prefix[own] = entry;
  }
}

// Pages of slow rows are theirs alone.
template <class Team>
DP_RARE void seal_alone(Team team, State s, StepBuffers& b) {
  team.each(static_cast<int>(b.rows), [&](int r) {
    for (int page = sealed_before(b, r); page < sealed_after(b, r); ++page) {
      for (int g = 0; g < cfg::kGroups; ++g) {
        if (g != kFull) s.pages.state[g].residency[b.table[g][b.row_slot[r]][page]] = Residency::kSealed;
      }
    }
  });
  team.sync();
}

// After a forward pass: the `total` pages that it filled, of which each row's come after Work::retired, are sealed, and
// go into the index. Those of a row that compete for a bucket with others of this step, or find their key taken, the
// leader indexes in order; the others do not touch each other.
template <class Team>
DP_FN void seal(Team& team, State& s, StepBuffers& b, int total) {
  if (is_slow(lane_of(b))) return seal_alone(team, s, b);
  Requests& requests = s.requests;
  Work& w = s.work;
  const auto contest = [&](int32_t slot) {
    if (glance(w.indexing[slot]) != kKeptApart) show<int32_t>(w.indexing[slot], kContested);
  };
  team.each(static_cast<int>(b.rows), [&](int r) {
    const int before = sealed_before(b, r), after = sealed_after(b, r), slot = b.row_slot[r];
    if (before == after) return;
    const int32_t q = s.rows.request[slot], keyed = requests.keyed[q];
    const int32_t parent = b.table[kAnchor][slot][most(0, before - 1)];
    const int first = w.retired[r].of[kSealedPages];
    for (int page = before; page < after; ++page) {
      w.sealed_slot[first + page - before] = slot;
      w.sealed_page[first + page - before] = page;
      w.sealed_key[first + page - before] = 0;
    }
    if (cfg::kPrefixReuse) {
      for (int page = keyed; page < after; ++page) {
        const uint64_t key = next_key(s, q, page);
        history_key(s, q, page) = key;
        if (page >= before) w.sealed_key[first + page - before] = key;
      }
      requests.keyed[q] = most(keyed, after);
    }
    const bool follows = s.rows.indexed[slot] == before && (before == 0 || parent != kNone);
    w.indexing[slot] = cfg::kPrefixReuse && follows ? kUncontested : kKeptApart;
  });
  if (team.leader()) w.contests = 0;
  team.sync();
  team.each(total, [&](int k) {
    const int32_t slot = w.sealed_slot[k], page = w.sealed_page[k];
    const int32_t parent = b.table[kAnchor][slot][most(0, page - 1)];
    uint64_t key = w.sealed_key[k];
    if (key == 0) key = history_key(s, s.rows.request[slot], page);
    w.sealed_key[k] = key;
    prefetch(*bucket_of(s, key));
    for (int g = 0; g < cfg::kGroups; ++g) s.pages.state[g].residency[b.table[g][slot][page]] = Residency::kSealed;
    if (parent != kNone) prefetch(s.pages.state[kAnchor].generation[parent]);
    w.sealed_bucket[k] = static_cast<int32_t>(key % Prefixes::kBuckets);
    if (find_prefix(s, key) != kNone) contest(slot);
  });
  team.sync();
  team.each(total, [&](int k) {
    int same = 0;
    for (int other = 0; other < total; ++other) same += w.sealed_bucket[other] == w.sealed_bucket[k] ? 1 : 0;
    if (same > 1) contest(w.sealed_slot[k]);
  });
  team.sync();
  team.each(total, [&](int k) {
    const int32_t slot = w.sealed_slot[k], page = w.sealed_page[k], indexing = w.indexing[slot];
    if (indexing == kContested) show(w.contests, 1);
    if (indexing != kUncontested) return;
    add_entry(s, b, slot, page, w.sealed_key[k]);
    if (k + 1 == total || w.sealed_slot[k + 1] != slot) s.rows.indexed[slot] = page + 1;
  });
  team.sync();
  if (w.contests == 0) return;
  if (team.leader()) {
    for (int k = 0; k < total; ++k) {
      const int32_t slot = w.sealed_slot[k];
      if (w.indexing[slot] == kContested) index_page(s, b, slot, s.rows.request[slot], w.sealed_page[k]);
    }
  }
  team.sync();
}

// How many leading pages of a request's tokens are in the index, with all that their windows need; at least one token
// is left to compute, and all that it wants logprobs of. Their entries are in Matches::entry.
template <class Team>
DP_FN int match_prefix(Team& team, State& s, int32_t q) {
  if (!cfg::kPrefixReuse) return 0;
  Matches& w = s.matches;
  const Prefixes& prefixes = s.prefixes;
  const int reusable = least(s.requests.length[q] - 1, s.requests.scored[q]);
  const int limit = least(s.requests.keyed[q], reusable / cfg::kPageSize);
  team.each(limit, [&](int i) {
    const int32_t entry = find_prefix(s, history_key(s, q, i));
    w.entry[i] = entry != kNone && same_tokens(s, entry, q, i) ? entry : kNone;
    w.usable[i] = true;
  });
  const uint64_t miss = team.reduce(
      limit,
      [&](int i) {
        const bool hit = w.entry[i] != kNone && follows(s, w.entry[i], i == 0 ? kNone : w.entry[i - 1]);
        return hit ? Least::kEmpty : static_cast<uint64_t>(i);
      },
      Least());
  const int found = static_cast<int>(least(miss, static_cast<uint64_t>(limit)));
  for (int g = 0; g < cfg::kGroups; ++g) {
    if (cfg::kGroups == 1 || g == kAnchor) continue;
    team.sync();
    team.each(found, [&](int i) { w.before[i] = prefixes.page[g][w.entry[i]] != kNone ? 1 : 0; });
    const int32_t all = team.scan(w.before, found);
    team.each(found, [&](int i) {
      const int pages = i + 1, first = first_needed(g, pages * cfg::kPageSize);
      // Nothing is needed where the window ends within the pages that follow.
      const int32_t there = (pages < found ? w.before[pages] : all) - (first < found ? w.before[first] : all);
      if (there != pages - least(first, pages)) w.usable[i] = false;
    });
  }
  const uint64_t shorter = team.reduce(
      found, [&](int i) { return w.usable[i] ? static_cast<uint64_t>(found - 1 - i) : Least::kEmpty; }, Least());
  return shorter == Least::kEmpty ? 0 : found - static_cast<int>(shorter);
}

// Pages of a group that are idle and would be held if a row took the first `pages` of Matches::entry.
template <class Team>
DP_FN int idle_pages(Team& team, const State& s, int group, int pages) {
  const int first = least(pages, first_needed(group, pages * cfg::kPageSize));
  const uint64_t idle = team.reduce(
      pages - first,
      [&](int i) {
        const int32_t page = s.prefixes.page[group][s.matches.entry[first + i]];
        return uint64_t{s.pages.state[group].holders[page] == 0 ? 1u : 0u};
      },
      Sum());
  return static_cast<int>(idle);
}

// A row that holds nothing takes the first `pages` of Matches::entry, `idle` of which no row holds.
template <class Team>
DP_FN void reuse_prefix(Team& team, State& s, StepBuffers& b, int32_t slot, int pages, const int* idle) {
  Rows& rows = s.rows;
  for (int g = 0; g < cfg::kGroups; ++g) {
    const int first = least(pages, first_needed(g, pages * cfg::kPageSize));
    team.each(pages - first, [&](int i) {
      const int32_t page = s.prefixes.page[g][s.matches.entry[first + i]];
      b.table[g][slot][first + i] = page;
      ++s.pages.state[g].holders[page];
      s.pages.state[g].recent[page] = true;
    });
    if (!team.leader()) continue;
    rows.first[g][slot] = first;
    rows.end[g][slot] = pages;
    s.pages.idle[g] -= idle[g];
  }
  if (team.leader()) {
    const int32_t q = rows.request[slot];
    rows.indexed[slot] = pages;
    s.requests.computed[q] = pages * cfg::kPageSize;
    s.counters.reused += static_cast<uint64_t>(s.requests.computed[q]);
  }
  team.sync();
}

}  // namespace dp
