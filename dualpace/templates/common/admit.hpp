// Third phase of a step: which rows keep their pages, and who gets a free row.
#pragma once
#include "common/accept.hpp"
#include "common/leave.hpp"
#include "common/pace.hpp"
#include "common/pages.hpp"
#include "common/prefix.hpp"
#include "common/score.hpp"
#include "common/share.hpp"
#include "common/state.hpp"
#include "common/team.hpp"

namespace dp {

// A row runs only if its ring surely has room for its record: the first of a ring's rows, in order of admission.
template <class Team>
DP_FN void pause_rows(Team& team, State& s, int lane) {
  const int n = s.rows.running_count;
  const int32_t* running = s.rows.running;
  int32_t* nth = s.work.a;
  const auto here = [&](int i) { return lane_of_row(s, running[i]) == lane; };
  team.each(n, [&](int i) {
    if (here(i)) s.rows.paused[running[i]] = false;
  });
  for (int r = 0; r < cfg::kRings; ++r) {
    RingState& ring = s.rings[r];
    if (team.leader()) ring.promised[lane] = least(ring.rows[lane], ring.room);
    if (ring.rows[lane] <= ring.room) continue;
    const auto of_ring = [&](int i) { return here(i) && s.requests.ring[s.rows.request[running[i]]] == r; };
    team.sync();
    team.each(n, [&](int i) { nth[i] = of_ring(i) ? 1 : 0; });
    team.scan(nth, n);
    team.each(n, [&](int i) {
      if (of_ring(i)) s.rows.paused[running[i]] = static_cast<uint32_t>(nth[i]) >= ring.room;
    });
  }
  if (team.leader() && s.short_lane == lane) s.short_lane = kNone;
}

// How far the running rows' demand exceeds the pages of a group that no row holds; negative if it does not.
template <class Team>
DP_FN int64_t shortage(Team& team, const State& s, int group) {
  const uint64_t sum = team.reduce(
      s.rows.running_count, [&](int i) { return static_cast<uint64_t>(row_demand(s, group, s.rows.running[i])); },
      Sum());
  return static_cast<int64_t>(sum) - available(s, group);
}

template <class Team>
DP_FN bool is_short(Team& team, const State& s) {
  bool lacks = false;
  for (int g = 0; g < cfg::kGroups; ++g) lacks = shortage(team, s, g) > 0 || lacks;
  return lacks;
}

// Requeues the row that loses least, of this lane or also of the others' paused ones: paused rows first, then the one
// with the least KV, the last admitted among equals. One after the other, because what a row gives back depends on who
// else holds it. A row of another lane is marked, and leaves with that lane's next step; false if it is one.
template <class Team>
DP_RARE bool requeue_row(Team team, State s, StepBuffers& b, bool of_all) {
  Rows& rows = s.rows;
  const int n = rows.running_count, lane = lane_of(b);
  const uint64_t lowest = team.reduce(
      n,
      [&](int i) {
        const int32_t slot = rows.running[i];
        if (lane_of_row(s, slot) != lane && !(of_all && rows.paused[slot])) return Least::kEmpty;
        const auto computed = static_cast<uint64_t>(s.requests.computed[rows.request[slot]]);
        return uint64_t{rows.paused[slot] ? 0u : 1u} << 63 | computed << 31 | static_cast<uint64_t>(n - 1 - i);
      },
      Least());
  const int32_t slot = rows.running[n - 1 - static_cast<int>(lowest & 0x7FFFFFFF)];
  const bool here = lane_of_row(s, slot) == lane;
  if (team.leader()) rows.leave[slot] = Leave::kRequeue;
  leave_rows(team, s, b);
  return here;
}

// While the running rows' demand exceeds the pages. The lane's row with the most KV that can run is never requeued,
// unless it is alone in its lane; then it fits, or rows of another lane that it was let in beside have to finish first.
// So something always finishes.
template <class Team>
DP_FN void preempt(Team& team, State& s, StepBuffers& b) {
  while (is_short(team, s)) requeue_row(team, s, b, false);
}

DP_FN inline int running_rows(const State& s, int lane) {
  uint32_t rows = 0;
  for (const RingState& ring : s.rings) rows += ring.rows[lane];
  return static_cast<int>(rows);
}

// Of the lane that is about to step.
DP_FN inline int paused_rows(const State& s, int lane) {
  uint32_t rows = 0;
  for (const RingState& ring : s.rings) rows += ring.rows[lane] - ring.promised[lane];
  return static_cast<int>(rows);
}

template <class Team>
DP_FN int paused_rows(Team& team, const State& s) {
  const auto paused = [&](int i) { return uint64_t{s.rows.paused[s.rows.running[i]] ? 1u : 0u}; };
  return static_cast<int>(team.reduce(s.rows.running_count, paused, Sum()));
}

// The most that a group's lack can fall by if all paused rows leave: less where they share pages with others.
template <class Team>
DP_FN int64_t paused_pages(Team& team, const State& s, int group) {
  const Rows& rows = s.rows;
  return static_cast<int64_t>(team.reduce(
      rows.running_count,
      [&](int i) {
        const int32_t slot = rows.running[i];
        const int held = has_slots(group, slot) ? cfg::kCacheBlocks : rows.end[group][slot] - rows.first[group][slot];
        const int pages = row_demand(s, group, slot) + held;
        return static_cast<uint64_t>(rows.paused[slot] ? pages : 0);
      },
      Sum()));
}

// A page for each row that runs beside the new one, and for that, so that admission does not cause preemption at once.
DP_FN constexpr int headroom(int running) { return running == 0 ? 0 : running + 1; }

// The leader's part of an admission: history for the whole life of the request, a row slot, and the end of the batch.
DP_FN inline void give_row(State& s, int32_t q) {
  Requests& requests = s.requests;
  dequeue(s, q);
  const int pages = history_pages(requests.longest[q]);
  s.rings[requests.ring[q]].lives += pages - requests.history_count[q];
  for (int i = requests.history_count[q]; i < pages; ++i) {
    requests.history[q][i] = s.history.free.item[--s.history.free.count];
  }
  requests.history_count[q] = pages;
  int32_t slot;
  if (is_slow(lane_of_request(s, q))) {
    slot = s.recall->seats.item[--s.recall->seats.count];
  } else {
    slot = s.rows.free.item[--s.rows.free.count];
  }
  requests.phase[q] = Phase::kRunning;
  requests.row[q] = slot;
  s.rows.request[slot] = q;
  s.rows.paused[slot] = false;
  s.rows.indexed[slot] = 0;
  s.rows.token[slot] = history_token(s, q, requests.length[q] - 1);
  for (int g = 0; g < cfg::kGroups; ++g) s.rows.first[g][slot] = s.rows.end[g][slot] = 0;
  s.rows.running[s.rows.running_count++] = slot;
  RingState& ring = s.rings[requests.ring[q]];
  ++ring.rows[lane_of_request(s, q)];
  ++ring.promised[lane_of_request(s, q)];
}

// Who is next: rings take turns, and within a ring its queue's first, if its ring has room for its records and the
// history for its whole life. A ring that lacks history is passed over: its own lives end, and then there is enough.
DP_FN inline int32_t next_request(const State& s, int lane) {
  for (int i = 0; i < cfg::kRings; ++i) {
    const int r = (s.ring_turn + i) % cfg::kRings;
    const RingState& ring = s.rings[r];
    const int32_t head = ring.queue[lane].head;
    if (head == kNone || ring.room <= ring.rows[lane]) continue;
    const int waiting = s.requests.history_count[head], life = history_pages(s.requests.longest[head]);
    if (!s.requests.fresh[head] || leaves_history(s, r, -waiting, life)) return head;
  }
  return kNone;
}

// Whether a request would have a row slot; one of the slow lane keeps its own while it drains.
DP_FN inline bool has_seat(const State& s, int lane) {
  return is_slow(lane) ? s.recall->seats.count > 0 : running_rows(s, lane) < lane_rows(lane);
}

// How many host pages a request of the slow lane lacks; none or less if it lacks none.
DP_FN inline int32_t host_lack(const State& s, int32_t q) {
  return host_need(s.requests.longest[q]) - host_spare(*s.recall);
}

// Host pages of the lane's paused rows, which they had or were promised.
DP_FN inline int32_t paused_host(const State& s) {
  int32_t pages = 0;
  for (int32_t slot = 0; slot < kSlowRows; ++slot) {
    const int32_t q = s.rows.request[slot];
    if (q != kNone && s.rows.paused[slot]) pages += host_need(s.requests.longest[q]);
  }
  return pages;
}

// Whether a request that waits for pages on the card would have a row at once if it was slow, and take fewer pages.
// `lack` and `wanted` are of the fast row that it would be.
DP_FN inline bool goes_slow(const State& s, int32_t q, const int64_t* lack, const int* wanted) {
  for (const RingState& ring : s.rings) {
    if (ring.queue[kSlowLane].head != kNone) return false;
  }
  if (s.recall->seats.count == 0 || host_lack(s, q) > 0 || wanted[kFull] <= cfg::kCacheBlocks) return false;
  if (!link_has_time(s, q)) return false;
  for (int g = 0; g < cfg::kGroups; ++g) {
    const int pages = g == kFull ? cfg::kCacheBlocks : demand(g, 0, 0, 0, s.requests.length[q]);
    if (lack[g] + pages + headroom(s.rows.running_count) > 0) return false;
  }
  return true;
}

// The leader's: a request goes from its ring's fast queue to its place in the slow one.
DP_FN inline void make_slow(State& s, int32_t q) {
  RingState& ring = s.rings[s.requests.ring[q]];
  unlink(s.requests, ring.queue[static_cast<int>(Lane::kFast)], q);
  s.requests.lane[q] = Lane::kSlow;
  insert_after(s.requests, ring.queue[kSlowLane], kNone, q);
}

// Admits while there are rows, tokens in the step's budget and pages for all that the new row has to compute. Nothing
// overtakes a request that waits for them, but paused rows give way to it, if that lets it in: their frontends may have
// stalled for ever. They have no room for a record, so they are not admitted again before they can run.
template <class Team>
DP_RARE void admit_waiting(Team team, State s, StepBuffers& b, int64_t budget) {
  const int lane = lane_of(b);
  int64_t lack[cfg::kGroups];
  for (int g = 0; g < cfg::kGroups; ++g) lack[g] = shortage(team, s, g);
  while (budget > 0) {
    const bool has_slot = has_seat(s, lane);
    int paused = paused_rows(s, lane);
    const int32_t q = has_slot || paused > 0 ? next_request(s, lane) : kNone;
    if (q == kNone) break;
    if (is_slow(lane) && !link_has_time(s, q)) {
      if (team.leader()) ++s.counters.link_waits;
      break;
    }
    const int pages = is_slow(lane) ? 0 : match_prefix(team, s, q), reused = pages * cfg::kPageSize;
    const int running = s.rows.running_count, length = s.requests.length[q];
    int idle[cfg::kGroups], wanted[cfg::kGroups];
    bool has_pages = true;
    for (int g = 0; g < cfg::kGroups; ++g) {
      idle[g] = idle_pages(team, s, g, pages);
      wanted[g] = idle[g] + demand(g, least(pages, first_needed(g, reused)), pages, reused, length);
      if (is_slow(lane) && g == kFull) wanted[g] = cfg::kCacheBlocks;
      has_pages = has_pages && lack[g] + wanted[g] + headroom(running) <= 0;
    }
    const int32_t lacks_host = is_slow(lane) ? host_lack(s, q) : 0;
    const bool fits = has_slot && has_pages && lacks_host <= 0;
    if (kLaneCount > 1 && has_slot && !fits) paused = paused_rows(team, s);
    // What drains comes back by itself.
    const bool drains = kOffload && s.recall->draining > 0;
    bool would_fit = paused > 0 && !drains && (!is_slow(lane) || lacks_host <= paused_host(s));
    for (int g = 0; g < cfg::kGroups && !fits && would_fit; ++g) {
      would_fit = lack[g] + wanted[g] + headroom(running - paused) <= paused_pages(team, s, g);
    }
    team.sync();
    if (!fits) {
      // Row slots and host pages are the lane's own.
      if (!would_fit || !requeue_row(team, s, b, has_slot && lacks_host <= 0)) {
        const bool turns = kOffload && !is_slow(lane) && !would_fit && !drains && goes_slow(s, q, lack, wanted);
        team.sync();
        if (team.leader() && turns) make_slow(s, q);
        if (team.leader() && !turns && !(is_slow(lane) && has_pages)) {
          ++s.counters.exhausted;
          s.short_lane = lane;
        }
        break;
      }
      for (int g = 0; g < cfg::kGroups; ++g) lack[g] = shortage(team, s, g);
      continue;
    }
    for (int g = 0; g < cfg::kGroups; ++g) lack[g] += wanted[g];
    budget -= appetite(s, q, reused);
    const bool fresh = s.requests.fresh[q];
    team.sync();
    if (team.leader()) {
      s.ring_turn = (s.requests.ring[q] + 1) % cfg::kRings;
      if (fresh) s.requests.cached[q] = reused;
      give_row(s, q);
    }
    team.sync();
    reuse_prefix(team, s, b, s.requests.row[q], pages, idle);
    if (is_slow(lane)) take_slots(team, s, b, s.requests.row[q]);
  }
}

template <class Team>
DP_FN void admit(Team& team, State& s, StepBuffers& b) {
  Rows& rows = s.rows;
  const int lane = lane_of(b);
  pause_rows(team, s, lane);
  if (kLaneCount > 1) leave_rows(team, s, b);  // those that another lane marked
  for (int g = 0; g < cfg::kGroups; ++g) {
    if (cfg::kWindow[g] == 0) continue;
    drop_pages(team, s, b, g, rows.running, rows.running_count, [&](int k) {
      const int32_t slot = rows.running[k];
      return most(rows.first[g][slot],
                  least(rows.end[g][slot], first_needed(g, s.requests.computed[rows.request[slot]])));
    });
  }
  preempt(team, s, b);
  bool waiting = false;
  for (const RingState& ring : s.rings) waiting = waiting || ring.queue[lane].head != kNone;
  if (!waiting || s.short_lane != kNone) return;
  const auto pending = [&](int i) {
    const int32_t slot = rows.running[i], q = rows.request[slot];
    const bool runs = lane_of_row(s, slot) == lane && !rows.paused[slot];
    return static_cast<uint64_t>(runs ? appetite(s, q, s.requests.computed[q]) : 0);
  };
  const uint64_t decoding =
      team.reduce(rows.running_count, [&](int i) { return uint64_t{pending(i) == 1 ? 1u : 0u}; }, Sum());
  const uint64_t prefilling =
      team.reduce(rows.running_count, [&](int i) { return pending(i) > 1 ? pending(i) : uint64_t{0}; }, Sum());
  const int64_t room = least<int64_t>(cfg::kPrefillChunk, cfg::kMaxStepTokens - static_cast<int64_t>(decoding));
  admit_waiting(team, s, b, room - static_cast<int64_t>(prefilling));
  team.sync();
}

}  // namespace dp
