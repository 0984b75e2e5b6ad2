// Second phase of a step: the rings. What they held when they were looked at, once, is what the step acts on.
#pragma once
#include "common/accept.hpp"
#include "common/leave.hpp"
#include "common/publish.hpp"
#include "common/ring.hpp"
#include "common/state.hpp"
#include "common/team.hpp"

namespace dp {

// The words of the rings that this member looks at, loaded as early in a step as they can be: from host memory a word
// takes the device a microsecond, which it spends elsewhere as long as nothing is done with the word.
template <class Team>
struct Sights {
  static constexpr int kEach = Team::share(2 * cfg::kRings);
  uint32_t count[kEach];
  uint64_t flag[kEach];
};

// f(k, r, first) for this member's k-th pair of words, which are of ring r: the epoch and the flag of the next submit,
// or else the reader's count and the flag of the next abort.
template <class Team, class F>
DP_FN void each_sight(Team& team, F f) {
  for (int k = 0; k < Sights<Team>::kEach; ++k) {
    const int i = team.index() + k * team.count();
    if (i < 2 * cfg::kRings) f(k, i / 2, i % 2 == 0);
  }
}

// What is looked at of a ring whose epoch is what it was.
template <class Team>
DP_FN Sights<Team> look(Team& team, const State& s, const RingMemory& m) {
  Sights<Team> sights;
  each_sight(team, [&](int k, int r, bool first) {
    const RingState& ring = s.rings[r];
    const Ring& memory = m.rings[r];
    sights.count[k] = peek(first ? memory.control.epoch : memory.control.token_read);
    sights.flag[k] = peek(first ? memory.submits[ring.submit_read % cfg::kRequestSlots].flag
                                : memory.aborts[ring.abort_read % cfg::kRequestSlots].flag);
  });
  return sights;
}

// A new epoch starts all counts at 0.
DP_RARE inline void turn(State s, int r, uint32_t epoch) {
  RingState& ring = s.rings[r];
  ring.epoch = epoch;
  ring.submit_read = ring.abort_read = ring.token_written = 0;
  ring.announced = 0;
  for (int l = 0; l < kLaneCount; ++l) ring.promised[l] = ring.scores[l] = 0;
  for (Finish& cancelled : s.cancelled[r]) cancelled = Finish::kNone;
}

// The room that other lanes' rows have been promised is taken.
DP_FN inline void take_sights(const State& s, int r, const Ring& memory, int lane) {
  RingState& ring = s.rings[r];
  const uint32_t epoch = s.work.epoch[r];
  ring.turned = epoch != ring.epoch;
  ring.blocked = false;
  if (ring.turned) turn(s, r, epoch);
  ring.promised[lane] = ring.scores[lane] = 0;
  ring.token_read = ring.turned ? observe(memory.control.token_read) : s.work.token_read[r];
  ring.room = cfg::kTokenSlots - least(ring.token_written - ring.token_read, cfg::kTokenSlots);
  for (int l = 0; l < kLaneCount; ++l) ring.room -= least(ring.room, ring.promised[l] + ring.scores[l]);
  const auto there = [&](const auto& records, uint32_t read, uint64_t flag) {
    return ring.turned || flag == record_flag(epoch, read) ? visible(records, epoch, read) : 0;
  };
  ring.submits = there(memory.submits, ring.submit_read, s.work.submit_flag[r]);
  ring.aborts = there(memory.aborts, ring.abort_read, s.work.abort_flag[r]);
  if (ring.ended.head != kNone) settle();  // its last record goes where the reader has just been
}

// What a record of the abort queue ends a request with; kNone if no ring library writes such a record.
DP_FN inline Finish reason_of(const AbortRecord& record) {
  const uint32_t type = glance(record.type);
  if (type == static_cast<uint32_t>(RecordType::kAbort)) return Finish::kAbort;
  return type == static_cast<uint32_t>(RecordType::kFinish) ? Finish::kStop : Finish::kNone;
}

// Marks the requests of past epochs, and those that abort records name. One that is not accepted yet is cancelled then.
// Of several records for one request the first counts. Each member reads a record once; where a broken frontend changes
// it meanwhile, they may read different ones, which name requests of its ring alone.
template <class Team>
DP_FN void mark(Team& team, State& s, int r, const Ring& memory) {
  RingState& ring = s.rings[r];
  Requests& requests = s.requests;
  if (ring.turned) {
    team.each(cfg::kMaxRequests, [&](int q) {
      if (requests.ring[q] == r && requests.epoch[q] != ring.epoch) requests.leaving[q] = Finish::kAbort;
    });
  }
  for (uint32_t k = 0; k < ring.aborts; ++k) {
    const AbortRecord& record = memory.aborts[(ring.abort_read + k) % cfg::kRequestSlots];
    const uint32_t index = glance(record.index);
    const Finish reason = reason_of(record);
    if (team.leader()) {
      Finish& cancelled = s.cancelled[r][index % cfg::kRequestSlots];
      if (index - ring.submit_read < cfg::kRequestSlots && cancelled == Finish::kNone) cancelled = reason;
      s.counters.malformed += reason == Finish::kNone ? 1 : 0;
    }
    team.each(cfg::kMaxRequests, [&](int q) {
      if (requests.ring[q] == r && requests.epoch[q] == ring.epoch && requests.index[q] == index) {
        if (requests.leaving[q] == Finish::kNone) requests.leaving[q] = reason;
      }
    });
  }
}

// Ends what was marked, but for rows of other lanes: its pages and its history are free at once, its last record may
// have to wait.
template <class Team>
DP_FN void end_marked(Team& team, State& s, StepBuffers& b) {
  Requests& requests = s.requests;
  const int lane = lane_of(b);
  int32_t *list = s.work.request, *place = s.work.offset;
  const auto elsewhere = [&](int q) { return requests.phase[q] == Phase::kRunning && lane_of_request(s, q) != lane; };
  const auto leaving = [&](int q, Phase phase) {
    return requests.leaving[q] != Finish::kNone && requests.phase[q] == phase && !elsewhere(q);
  };
  team.sync();
  team.each(cfg::kMaxRequests, [&](int q) { place[q] = leaving(q, Phase::kQueued) ? 1 : 0; });
  const int32_t n = team.scan(place, cfg::kMaxRequests);
  team.each(cfg::kMaxRequests, [&](int q) {
    if (leaving(q, Phase::kQueued)) list[place[q]] = q;
    if (leaving(q, Phase::kRunning)) {
      requests.finish[q] = requests.leaving[q];
      s.rows.leave[requests.row[q]] = Leave::kReport;
    }
  });
  team.sync();
  if (team.leader()) {
    for (int k = 0; k < n; ++k) {
      dequeue(s, list[k]);
      end_request(s, list[k], requests.leaving[list[k]]);
    }
  }
  drop_history(team, s, n);
  leave_rows(team, s, b);
  team.each(cfg::kMaxRequests, [&](int q) {
    if (!elsewhere(q)) requests.leaving[q] = Finish::kNone;
  });
}

// Acts on new epochs and abort records, and on those that a step of another lane has seen.
template <class Team>
DP_RARE void heed(Team team, State s, StepBuffers& b, RingMemory& m) {
  for (int r = 0; r < cfg::kRings; ++r) {
    if (s.rings[r].turned || s.rings[r].aborts > 0) mark(team, s, r, m.rings[r]);
  }
  end_marked(team, s, b);
  team.sync();
  if (!team.leader()) return;
  for (int r = 0; r < cfg::kRings; ++r) {
    RingState& ring = s.rings[r];
    RingControl& control = m.rings[r].control;
    s.counters.epochs += ring.turned ? 1 : 0;
    for (bool& left : ring.marked) left = left || ring.turned || ring.aborts > 0;
    ring.marked[lane_of(b)] = false;
    ring.abort_read += ring.aborts;
    if (ring.turned || ring.aborts > 0) publish(control.abort_read, ring.abort_read);
    if (ring.turned) {
      publish(control.submit_read, ring.submit_read);
      publish(control.seen_epoch, ring.epoch);
    }
  }
}

template <class Team>
DP_FN void keep_sights(Team& team, const State& s, const Sights<Team>& sights) {
  each_sight(team, [&](int k, int r, bool first) {
    (first ? s.work.epoch : s.work.token_read)[r] = sights.count[k];
    (first ? s.work.submit_flag : s.work.abort_flag)[r] = sights.flag[k];
  });
}

template <class Team, class Seen>
DP_FN void poll(Team& team, State& s, StepBuffers& b, RingMemory& m, const Seen& sights) {
  const int lane = lane_of(b);
  keep_sights(team, s, sights);
  team.sync();
  team.each(cfg::kRings, [&](int r) { take_sights(s, r, m.rings[r], lane); });
  team.sync();
  bool heeded = false, submitted = false, ended = false;
  for (const RingState& ring : s.rings) {
    heeded |= ring.turned || ring.aborts > 0 || ring.marked[lane];
    submitted |= ring.submits > 0;
    ended |= ring.ended.head != kNone;
  }
  if (heeded) heed(team, s, b, m);
  if (heeded || ended) {
    team.sync();
    if (team.leader()) report_ends(s, m);  // before others look for request slots
    team.sync();
  }
  if (submitted) {
    accept(team, s, m);
    if (team.leader()) report_ends(s, m);  // of what was refused
    team.sync();
  }
}

// Whether a step would find something in the rings that the last one did not.
DP_FN inline bool work_waits(const State& s, const RingMemory& m) {
  for (int r = 0; r < cfg::kRings; ++r) {
    const RingState& ring = s.rings[r];
    const Ring& memory = m.rings[r];
    if (observe(memory.control.epoch) != ring.epoch) return true;
    if (visible(memory.aborts, ring.epoch, ring.abort_read, 1) != 0) return true;
    if (!ring.blocked && visible(memory.submits, ring.epoch, ring.submit_read, 1) != 0) return true;
    bool stuck = ring.blocked || ring.queued > 0 || ring.ended.head != kNone;
    for (const uint32_t rows : ring.rows) stuck = stuck || rows > 0;
    if (stuck && observe(memory.control.token_read) != ring.token_read) return true;
  }
  return false;
}

// Says that nobody looks at the rings any more until a frontend rings (host/doorbell.hpp). False if there is something
// to do, or will be without a word: when a frontend reads, it does not ring. One thread.
DP_RARE inline bool park(const State& s, RingMemory& m) {
  bool busy = s.rows.running_count > 0;
  for (const RingState& ring : s.rings) busy |= ring.blocked || ring.queued > 0 || ring.ended.head != kNone;
  if (busy) return false;
  declare(m.doorbell.parked, 1u);
  if (!work_waits(s, m)) return true;
  show(m.doorbell.parked, 0u);
  return false;
}

}  // namespace dp
