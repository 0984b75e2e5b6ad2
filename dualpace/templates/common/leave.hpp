// How requests leave the queue and rows leave the batch.
#pragma once
#include "common/chain.hpp"
#include "common/pages.hpp"
#include "common/residency.hpp"
#include "common/state.hpp"
#include "common/team.hpp"

namespace dp {

// The three below are the leader's.

// What was preempted goes to the front. Of the others the least turn goes first: the order of arrival, where each level
// of priority is worth a head start of kHeadStart requests, so who waits is overtaken by so many at most.
DP_FN inline void enqueue(State& s, int32_t q, bool ahead) {
  RingState& ring = s.rings[s.requests.ring[q]];
  s.requests.phase[q] = Phase::kQueued;
  Chain& queue = ring.queue[lane_of_request(s, q)];
  int32_t before = ahead ? kNone : queue.tail;
  while (before != kNone && s.requests.fresh[before] && s.requests.turn[before] > s.requests.turn[q]) {
    before = s.requests.previous[before];
  }
  insert_after(s.requests, queue, before, q);
  ++ring.queued;
  ring.queued_tokens += s.requests.length[q];
}

DP_FN inline void dequeue(State& s, int32_t q) {
  RingState& ring = s.rings[s.requests.ring[q]];
  unlink(s.requests, ring.queue[lane_of_request(s, q)], q);
  --ring.queued;
  ring.queued_tokens -= s.requests.length[q];
  if (s.requests.fresh[q]) {
    ring.prompts -= s.requests.history_count[q];
    ring.lives += s.requests.history_count[q];
  }
  s.requests.fresh[q] = false;
}

// The request waits for its last record; its history may go.
DP_FN inline void end_request(State& s, int32_t q, Finish finish) {
  s.requests.phase[q] = Phase::kEnded;
  s.requests.finish[q] = finish;
  Chain& ended = s.rings[s.requests.ring[q]].ended;
  insert_after(s.requests, ended, ended.tail, q);
}

DP_FN inline void free_request(State& s, int32_t q) {
  s.requests.phase[q] = Phase::kFree;
  s.requests.leaving[q] = Finish::kNone;
  --s.rings[s.requests.ring[q]].requests;
  s.requests.free.item[s.requests.free.count++] = q;
}

// Takes the lane's rows that are marked in Rows::leave out of the batch and frees their pages. Preempted requests go to
// the front of their queues, the one admitted first ahead; what ended gives back its history too.
template <class Team>
DP_RARE void leave_rows(Team team, State s, StepBuffers& b) {
  Rows& rows = s.rows;
  const int n = rows.running_count, lane = lane_of(b);
  const auto stays = [&](int32_t slot) { return rows.leave[slot] == Leave::kStay || lane_of_row(s, slot) != lane; };
  int32_t *place = s.work.b, *kept = s.work.kept, *left = s.work.left;
  team.sync();
  team.each(n, [&](int i) { place[i] = stays(rows.running[i]) ? 1 : 0; });
  const int32_t staying = team.scan(place, n), leaving = n - staying;
  if (leaving == 0) return;
  team.each(n, [&](int i) {
    const int32_t slot = rows.running[i];
    if (stays(slot)) {
      kept[place[i]] = slot;
    } else {
      left[i - place[i]] = slot;
    }
  });
  team.sync();
  team.each(staying, [&](int i) { rows.running[i] = kept[i]; });
  for (int g = 0; g < cfg::kGroups; ++g) {
    drop_pages(team, s, b, g, left, leaving, [&](int k) { return rows.end[g][left[k]]; });
  }
  if (is_slow(lane)) clear_tables(team, s, b, left, leaving);
  int ended = 0;
  for (int k = 0; k < leaving; ++k) {
    if (rows.leave[left[k]] == Leave::kRequeue) continue;
    if (team.leader()) s.work.request[ended] = rows.request[left[k]];
    ++ended;
  }
  team.sync();
  drop_history(team, s, ended);
  if (team.leader()) {
    rows.running_count = staying;
    for (int k = leaving - 1; k >= 0; --k) {
      const int32_t slot = left[k], q = rows.request[slot];
      RingState& ring = s.rings[s.requests.ring[q]];
      --ring.rows[lane];
      ring.promised[lane] = least(ring.promised[lane], ring.rows[lane]);
      s.requests.row[q] = kNone;
      if (is_slow(lane)) leave_slots(s, slot);
      if (rows.leave[slot] == Leave::kDone) free_request(s, q);
      if (rows.leave[slot] == Leave::kReport) end_request(s, q, s.requests.finish[q]);
      if (rows.leave[slot] == Leave::kRequeue) {
        s.requests.computed[q] = 0;
        enqueue(s, q, true);
        ++s.counters.preempted;
      }
      rows.leave[slot] = Leave::kStay;
      rows.request[slot] = kNone;
      if (!is_slow(lane)) rows.free.item[rows.free.count++] = slot;
    }
  }
  team.sync();
}

}  // namespace dp
