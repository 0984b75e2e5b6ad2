// Rows with KV in host memory, the scheduler's side: what they hold, what leaves, and when their memory is others'.
//
// A slow row has its slots for as long as it runs, and host pages are promised for its whole life, as history is: so it
// never waits for either midway. A page leaves when it is full, once. What a row has when it leaves is given back when
// no list that has not ended names it.
#pragma once
#include "common/pages.hpp"
#include "common/state.hpp"
#include "common/team.hpp"

namespace dp {

static_assert(!kOffload || kPinnedSlots + kChoiceSlots <= cfg::kPages[kFull], "a slow row's slots fit the pool");

// Pages that a request fills, with KV, while it has a row: no token follows its last one.
DP_FN constexpr int host_need(int longest) { return (longest - 1) / cfg::kPageSize; }

// Whether all that a request may come to fits the card.
DP_FN constexpr bool fits_card(int longest) { return pages_for(longest) <= cfg::kPages[kFull]; }

// Host pages that nobody has or may yet take.
DP_FN inline int32_t host_spare(const RecallMemory& r) { return r.host.count - r.promised; }

// How many of the `wanted` tokens of a slow row a step may have. Its last pages take turns in their slots, and for each
// chunk of a prompt all that came before is brought back: so a chunk waits until it can be as long as the slots allow.
DP_FN inline int32_t slow_tokens(const State& s, int32_t slot, int32_t wanted) {
  const SlowRow& row = s.recall->row[slot];
  const uint32_t ended = s.recall->departures_ended;
  if (wanted > 1 && pages_left(row, ended) < row.sent) return 0;
  const int32_t room = pages_allowed(row, ended) * cfg::kPageSize - s.requests.computed[s.rows.request[slot]];
  return most(0, least(wanted, room));
}

// A row that was just admitted takes its slots. The caller knows that the pool has them.
template <class Team>
DP_RARE void take_slots(Team team, State s, StepBuffers& b, int32_t slot) {
  SlowRow& row = s.recall->row[slot];
  int32_t* table = b.table[kFull][slot];
  take_pages(team, s, b, kFull, &slot, 1, [](int) { return cfg::kCacheBlocks; });
  team.each(cfg::kCacheBlocks, [&](int i) {
    row.slot[i] = table[i];
    table[i] = kNone;
  });
  start_row(team, row);
  if (team.leader()) {
    const int32_t q = s.rows.request[slot];
    s.rows.end[kFull][slot] = 0;
    row.recalled_with = s.recall->recalls_ended;
    s.recall->promised += host_need(s.requests.longest[q]);
  }
  team.sync();
}

// Rows slots[0..n) leave, and their tables have nothing more.
template <class Team>
DP_FN void clear_tables(Team& team, const State& s, StepBuffers& b, const int32_t* slots, int n) {
  for (int k = 0; k < n; ++k) {
    team.each(s.recall->row[slots[k]].pages, [&](int page) { b.table[kFull][slots[k]][page] = kNone; });
  }
}

// The leader's: the row has left, and keeps its memory for now.
DP_FN inline void leave_slots(State& s, int32_t slot) {
  RecallMemory& r = *s.recall;
  r.promised -= host_need(s.requests.longest[s.rows.request[slot]]) - r.row[slot].sent;
  r.drains[slot] = true;
  ++r.draining;
}

// Sees which lists have ended, for all of this call, and gives back the memory of rows that none names any more.
template <class Team>
DP_RARE void reclaim(Team team, State s) {
  RecallMemory& r = *s.recall;
  team.sync();
  if (team.leader()) {
    r.recalls_ended = observe(r.recalls.ended);
    r.departures_ended = observe(r.departures.ended);
  }
  team.sync();
  if (r.draining == 0) return;
  for (int32_t slot = 0; slot < kSlowRows; ++slot) {
    const SlowRow& row = r.row[slot];
    if (!r.drains[slot] || !is_quiet(row, r.recalls_ended, r.departures_ended)) continue;
    auto& free = s.pages.free[kFull];
    team.each(cfg::kCacheBlocks, [&](int i) {
      free.item[free.count + i] = row.slot[i];
      reset_page(s, kFull, row.slot[i]);
    });
    team.each(row.sent, [&](int i) {
      r.host.item[r.host.count + i] = row.host[i];
      ++r.generation[row.host[i]];
    });
    team.sync();
    if (team.leader()) {
      free.count += cfg::kCacheBlocks;
      r.host.count += row.sent;
      r.seats.item[r.seats.count++] = slot;
      r.drains[slot] = false;
      --r.draining;
    }
    team.sync();
  }
}

// Whether a list has ended since the scheduler was called last.
DP_FN inline bool lists_ended([[maybe_unused]] const State& s) {
  if constexpr (!kOffload) return false;
  const RecallMemory& r = *s.recall;
  return observe(r.recalls.ended) != r.recalls_ended || observe(r.departures.ended) != r.departures_ended;
}

// Pages that the last step filled leave, a list for each of a row, as far as there are places for lists. In a list rows
// come in order of admission.
template <class Team>
DP_RARE void send_pages(Team team, State s) {
  RecallMemory& r = *s.recall;
  const auto waiting = [&](int32_t slot) {
    return slot < kSlowRows && r.row[slot].sent < s.requests.computed[s.rows.request[slot]] / cfg::kPageSize;
  };
  for (;;) {
    const uint32_t ticket = r.departures.published + 1;
    if (!includes(r.departures_ended, ticket - BlockQueue::kPlaces)) return;
    int count = 0;
    for (int i = 0; i < s.rows.running_count; ++i) {
      const int32_t slot = s.rows.running[i];
      if (!waiting(slot)) continue;
      team.sync();
      send_page(team, r.row[slot], r.host.item[r.host.count - 1], ticket, cfg::kPages[kFull],
                r.departures.items_of(ticket) + count);
      if (team.leader()) {
        --r.host.count;
        --r.promised;
      }
      count += kRecallLayers;
    }
    if (count == 0) return;
    team.sync();
    if (team.leader()) {
      s.counters.sent_bytes += static_cast<uint64_t>(count) * kBlockBytes;
      r.departures.count_of(ticket) = count;
      publish(r.departures.published, ticket);
    }
    team.sync();
  }
}

// Whether a request's tokens choose when they are decoded; those of its prompt attend to all blocks.
DP_FN inline bool chooses(const State& s, int32_t q) { return cfg::kSparseBlocks > 0 && s.requests.sparse[q]; }

// The pages that the step begins, and in the lane's tables where tokens that attend to all blocks find the row's.
template <class Team>
DP_RARE void begin_pages(Team team, State s, StepBuffers& b) {
  for (int i = 0; i < s.rows.running_count; ++i) {
    const int32_t slot = s.rows.running[i], chunk = s.work.chunk[i];
    if (slot >= kSlowRows || chunk == 0) continue;
    SlowRow& row = s.recall->row[slot];
    const int32_t q = s.rows.request[slot], computed = s.requests.computed[q];
    const int32_t before = row.pages, pages = pages_for(computed + chunk);
    const int32_t first = least(before, first_recent(before));
    if (pages > before) {
      team.each(pages - first, [&](int k) { b.table[kFull][slot][first + k] = exact_entry(row, first + k, pages); });
    }
    team.sync();
    if (team.leader()) {
      row.pages = pages;
      row.sparse = chooses(s, q) && s.requests.length[q] - computed == 1 ? 1 : 0;
      s.rows.page[kFull][slot] = row.slot[pinned_slot(pages - 1)];
    }
  }
  team.sync();
}

}  // namespace dp
