// What holds between two steps, whatever happened before.
#pragma once
#include <vector>

#include "common/scheduler.hpp"

namespace dp {

// Every item of a pool is in its free list or owned exactly once.
class Ledger {
 public:
  explicit Ledger(int n) : owners_(static_cast<size_t>(n)) {}
  bool own(int item) {
    return item >= 0 && item < static_cast<int>(owners_.size()) && ++owners_[static_cast<size_t>(item)] == 1;
  }
  bool complete() const {
    for (int owners : owners_) {
      if (owners != 1) return false;
    }
    return true;
  }

 private:
  std::vector<int> owners_;
};

template <class List>
bool own_all(Ledger& ledger, const List& list) {
  for (int i = 0; i < list.count; ++i) {
    if (!ledger.own(list.item[i])) return false;
  }
  return true;
}

// Whether the tokens up to the end of a row's page are those of its entry in the prefix index.
inline bool equal_prefix(State& s, const StepBuffers& b, int g, int32_t slot, int page) {
  const int32_t entry = s.pages.state[g].prefix[b.table[g][slot][page]];
  if (entry == kNone || s.prefixes.page[g][entry] != b.table[g][slot][page]) return false;
  const int32_t before = page == 0 ? kNone : b.table[kAnchor][slot][page - 1];
  if (page == 0 || before != kNone ? !follows(s, entry, before) : false) return false;
  return find_prefix(s, s.prefixes.key[entry]) == entry && same_tokens(s, entry, s.rows.request[slot], page);
}

inline const char* broken_pages(State& s, const StepBuffers* lanes, int g) {
  const auto& state = s.pages.state[g];
  Ledger ledger(cfg::kPages[g]);
  std::vector<int> holders(static_cast<size_t>(cfg::kPages[g]));
  if (!own_all(ledger, s.pages.free[g])) return "a page is free twice";
  for (int i = 0; i < s.pages.free[g].count; ++i) {
    const int32_t page = s.pages.free[g].item[i];
    if (state.residency[page] != Residency::kFree || state.prefix[page] != kNone) return "a free page has contents";
  }
  for (int slot = 0; slot < Rows::N; ++slot) {
    const int32_t q = s.rows.request[slot];
    for (int entry = 0; entry < cfg::kPagesPerRow; ++entry) {
      if (has_slots(g, slot)) continue;
      const bool held = q != kNone && entry >= s.rows.first[g][slot] && entry < s.rows.end[g][slot];
      for (int lane = 0; lane < kLaneCount; ++lane) {
        const bool here = held && lane == lane_of_request(s, q);
        if (!here && lanes[lane].table[g][slot][entry] != kNone) return "a table has a page that the row does not hold";
      }
      if (!held) continue;
      const StepBuffers& b = lanes[lane_of_request(s, q)];
      const int32_t page = b.table[g][slot][entry];
      const bool indexed = entry < s.rows.indexed[slot];
      const bool full = (entry + 1) * cfg::kPageSize <= s.requests.computed[q];
      if (state.residency[page] != (full ? Residency::kSealed : Residency::kFilling)) {
        return "a page is sealed too early or too late";
      }
      if (indexed && !equal_prefix(s, b, g, slot, entry)) return "a page is shared by different prefixes";
      if (!indexed && state.prefix[page] != kNone) return "a row writes to a page that others may find";
      const int before = holders[static_cast<size_t>(page)]++;
      if (before == 0 ? !ledger.own(page) : !indexed) return "a page is owned twice";
    }
  }
  for (int32_t slot = 0; has_slots(g, slot); ++slot) {
    if (s.rows.request[slot] == kNone && !s.recall->drains[slot]) continue;
    for (const int32_t page : s.recall->row[slot].slot) {
      if (!ledger.own(page) || state.residency[page] != Residency::kFilling) return "a slot is not its row's alone";
      ++holders[static_cast<size_t>(page)];
    }
  }
  int idle = 0;
  for (int page = 0; page < cfg::kPages[g]; ++page) {
    if (state.holders[page] != holders[static_cast<size_t>(page)]) return "a page's holders are miscounted";
    if (state.holders[page] > 0 || state.prefix[page] == kNone) continue;
    if (state.residency[page] != Residency::kSealed) return "an idle page has no contents";
    if (s.prefixes.page[g][state.prefix[page]] != page) return "an idle page is not where it is looked for";
    if (!ledger.own(page)) return "an idle page is free";
    ++idle;
  }
  if (idle != s.pages.idle[g]) return "idle pages are miscounted";
  return ledger.complete() ? nullptr : "a page is lost";
}

// What a table has of a slow row is where a token that attends to all of it looks.
inline bool sound_table(const State& s, const StepBuffers* lanes, int32_t slot) {
  const bool runs = s.rows.request[slot] != kNone;
  const SlowRow& row = s.recall->row[slot];
  for (int lane = 0; lane < kLaneCount; ++lane) {
    for (int32_t page = 0; page < cfg::kPagesPerRow; ++page) {
      const bool begun = runs && is_slow(lane) && page < row.pages;
      if (lanes[lane].table[kFull][slot][page] != (begun ? exact_entry(row, page, row.pages) : kNone)) return false;
    }
  }
  return true;
}

// Nothing that a list names is anybody else's before it has ended.
inline bool sound_lists(const State& s, const BlockQueue& queue, bool leaving) {
  for (uint32_t t = observe(queue.ended) + 1; t != queue.published + 1; ++t) {
    for (int i = 0; i < queue.count[t % BlockQueue::kPlaces]; ++i) {
      const auto [from, to] = queue.item[t % BlockQueue::kPlaces][i];
      const int32_t pool = (leaving ? from : to) % cfg::kPages[kFull], host = (leaving ? to : from) / kRecallLayers;
      if (s.pages.state[kFull].residency[pool] == Residency::kFree) return false;
      for (int k = 0; k < s.recall->host.count; ++k) {
        if (s.recall->host.item[k] == host) return false;
      }
    }
  }
  return true;
}

inline const char* broken_recall(const State& s, const StepBuffers* lanes) {
  const RecallMemory& r = *s.recall;
  Ledger seats(kSlowRows), host(kHostPages);
  if (!own_all(seats, r.seats)) return "a slow row's slot is free twice";
  if (!own_all(host, r.host)) return "a host page is free twice";
  int draining = 0, promised = 0;
  for (int32_t slot = 0; slot < kSlowRows; ++slot) {
    const SlowRow& row = r.row[slot];
    const int32_t q = s.rows.request[slot];
    if (!sound_table(s, lanes, slot)) return "a slow row's table is not where its pages are";
    if (q == kNone && !r.drains[slot]) continue;
    if (!seats.own(slot)) return "a slow row's slot is in two places";
    for (int p = 0; p < row.sent; ++p) {
      if (!host.own(row.host[p])) return "a host page is owned twice";
    }
    if (q == kNone) {
      ++draining;
      continue;
    }
    if (r.drains[slot]) return "a row that runs drains";
    if (row.sent > s.requests.computed[q] / cfg::kPageSize) return "a page leaves before it is full";
    if (row.pages > pages_allowed(row, observe(r.departures.ended))) return "a page is written over before it has left";
    promised += host_need(s.requests.longest[q]) - row.sent;
  }
  if (!seats.complete()) return "a slow row's slot is lost";
  if (!host.complete()) return "a host page is lost";
  if (draining != r.draining || promised != r.promised) return "rows that drain or host pages promised are miscounted";
  if (promised > r.host.count) return "more host pages are promised than there are";
  if (!sound_lists(s, r.recalls, false) || !sound_lists(s, r.departures, true)) return "a page is given back in flight";
  return nullptr;
}

// What a ring is said to hold is what its requests do.
inline const char* broken_holdings(const State& s, int r) {
  int requests = 0, prompts = 0, lives = 0;
  uint32_t rows[kLaneCount] = {};
  for (int q = 0; q < Requests::N; ++q) {
    if (s.requests.phase[q] == Phase::kFree || s.requests.ring[q] != r) continue;
    ++requests;
    if (s.requests.phase[q] == Phase::kRunning) ++rows[lane_of_request(s, q)];
    (s.requests.fresh[q] ? prompts : lives) += s.requests.history_count[q];
  }
  for (int lane = 0; lane < kLaneCount; ++lane) {
    if (rows[lane] != s.rings[r].rows[lane]) return "a ring's rows are miscounted";
    if (s.rings[r].promised[lane] > rows[lane]) return "more room is promised than there are rows";
  }
  if (requests != s.rings[r].requests) return "a ring's requests are miscounted";
  return prompts == s.rings[r].prompts && lives == s.rings[r].lives ? nullptr : "a ring's history is miscounted";
}

inline const char* broken_requests(const State& s) {
  Ledger slots(Requests::N), history(cfg::kHistoryPages), rows(Rows::N);
  if (!own_all(slots, s.requests.free)) return "a request slot is free twice";
  if (!own_all(history, s.history.free)) return "a history page is free twice";
  if (!own_all(rows, s.rows.free)) return "a row slot is free twice";
  for (int r = 0; r < cfg::kRings; ++r) {
    const RingState& ring = s.rings[r];
    int queued = 0;
    if (const char* fault = broken_holdings(s, r)) return fault;
    for (int lane = 0; lane < kLaneCount; ++lane) {
      int previous = kNone;
      for (int32_t q = ring.queue[lane].head; q != kNone; previous = q, q = s.requests.next[q]) {
        if (s.requests.phase[q] != Phase::kQueued || s.requests.ring[q] != r) return "a queue holds what does not wait";
        if (lane_of_request(s, q) != lane) return "a queue holds another lane's request";
        if (s.requests.previous[q] != previous) return "a queue's links disagree";
        if (!slots.own(q)) return "a request is in two places";
        ++queued;
      }
      if (ring.queue[lane].tail != previous) return "a queue's links disagree";
    }
    if (queued != ring.queued) return "a queue's count is wrong";
    for (int32_t q = ring.ended.head; q != kNone; q = s.requests.next[q]) {
      if (s.requests.phase[q] != Phase::kEnded || s.requests.finish[q] == Finish::kNone) return "an end without reason";
      if (s.requests.history_count[q] != 0) return "an ended request holds history";
      if (!slots.own(q)) return "a request is in two places";
    }
  }
  int slots_owed = 0, history_owed = 0;
  for (const RingState& ring : s.rings) {
    slots_owed += most(0, 1 - ring.requests);
    history_owed += most(0, kHistoryPagesEach - ring.prompts) + most(0, kHistoryPagesEach - ring.lives);
  }
  if (s.requests.free.count < slots_owed) return "a request slot that a ring is owed is taken";
  if (s.history.free.count < history_owed) return "history that a ring is owed is taken";
  for (int32_t slot = 0; kOffload && slot < kSlowRows; ++slot) {
    if (s.rows.request[slot] == kNone && !rows.own(slot)) return "a slow row's slot is free for others";
  }
  for (int i = 0; i < s.rows.running_count; ++i) {
    const int32_t slot = s.rows.running[i], q = s.rows.request[slot];
    if (!rows.own(slot) || !slots.own(q)) return "a row runs twice";
    if (s.requests.phase[q] != Phase::kRunning || s.requests.row[q] != slot) return "row and request disagree";
    if (s.requests.computed[q] >= s.requests.length[q]) return "a row has nothing to compute";
  }
  for (int q = 0; q < Requests::N; ++q) {
    if (s.requests.phase[q] == Phase::kFree) continue;
    for (int i = 0; i < s.requests.history_count[q]; ++i) {
      if (!history.own(s.requests.history[q][i])) return "a history page is owned twice";
    }
  }
  if (!slots.complete()) return "a request slot is lost";
  if (!rows.complete()) return "a row slot is lost";
  if (!history.complete()) return "a history page is lost";
  return nullptr;
}

// What is wrong, or null.
inline const char* broken(State& s, const StepBuffers* lanes) {
  for (int g = 0; g < cfg::kGroups; ++g) {
    if (const char* fault = broken_pages(s, lanes, g)) return fault;
  }
  if (kOffload) {
    if (const char* fault = broken_recall(s, lanes)) return fault;
  }
  return broken_requests(s);
}

// Whether no request is anywhere and no page is held.
inline bool at_rest(const State& s) {
  bool free = s.requests.free.count == Requests::N && s.rows.free.count == Rows::N - (kOffload ? kSlowRows : 0);
  if (kOffload) free = free && s.recall->seats.count == kSlowRows && s.recall->host.count == kHostPages;
  free = free && s.history.free.count == cfg::kHistoryPages;
  for (int g = 0; g < cfg::kGroups; ++g) free = free && available(s, g) == cfg::kPages[g];
  return free;
}

}  // namespace dp
