// Second phase of a step: the rings. What they held when they were looked at, once, is what the step acts on.
#pragma once
#include "common/accept.hpp"
#include "common/leave.hpp"
#include "common/publish.hpp"
#include "common/ring.hpp"
#include "common/state.hpp"
#include "common/team.hpp"

namespace dp {

// The words of the rings that this member looks at. They are loaded as early as in a step nothing depends on them: from
// host memory a word takes the device a microsecond.
template <class Team>
struct Sights {
  uint64_t word[Team::share(kSights * cfg::kRings)];
};

// Of a ring whose epoch is what it was.
DP_FN inline uint64_t look(const RingState& ring, const Ring& memory, int sight) {
  switch (sight) {
    case kSeenEpoch:
      return peek(memory.control.epoch);
    case kSeenTokenRead:
      return peek(memory.control.token_read);
    case kSeenSubmit:
      return peek(memory.submits[ring.submit_read % cfg::kRequestSlots].flag);
    default:
      return peek(memory.aborts[ring.abort_read % cfg::kRequestSlots].flag);
  }
}

template <class Team>
DP_FN Sights<Team> look(Team& team, const State& s, const RingMemory& m) {
  Sights<Team> sights;
  int k = 0;
  for (int i = team.index(); i < kSights * cfg::kRings; i += team.count()) {
    sights.word[k++] = look(s.rings[i / kSights], m.rings[i / kSights], i % kSights);
  }
  return sights;
}

// A new epoch starts all counts at 0. The room that other lanes' rows have been promised is taken.
DP_FN inline void take_sights(const State& s, int r, const Ring& memory, int lane) {
  RingState& ring = s.rings[r];
  const uint64_t* seen = s.work.seen[r];
  const auto epoch = static_cast<uint32_t>(seen[kSeenEpoch]);
  ring.turned = epoch != ring.epoch;
  ring.blocked = false;
  if (ring.turned) {
    ring.epoch = epoch;
    ring.submit_read = ring.abort_read = ring.token_written = 0;
    ring.announced = 0;
    for (int l = 0; l < kLaneCount; ++l) ring.promised[l] = ring.scores[l] = 0;
    for (Finish& cancelled : s.cancelled[r]) cancelled = Finish::kNone;
  }
  ring.promised[lane] = ring.scores[lane] = 0;
  ring.token_read = ring.turned ? observe(memory.control.token_read) : static_cast<uint32_t>(seen[kSeenTokenRead]);
  ring.room = cfg::kTokenSlots - least(ring.token_written - ring.token_read, cfg::kTokenSlots);
  for (int l = 0; l < kLaneCount; ++l) ring.room -= least(ring.room, ring.promised[l] + ring.scores[l]);
  const auto there = [&](const auto& records, uint32_t read, uint64_t flag) {
    return ring.turned || flag == record_flag(epoch, read) ? visible(records, epoch, read) : 0;
  };
  ring.submits = there(memory.submits, ring.submit_read, seen[kSeenSubmit]);
  ring.aborts = there(memory.aborts, ring.abort_read, seen[kSeenAbort]);
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
DP_RARE void mark(Team team, State s, int r, const Ring& memory) {
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
DP_RARE void end_marked(Team team, State s, StepBuffers& b) {
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

template <class Team>
DP_FN void poll(Team& team, State& s, StepBuffers& b, RingMemory& m, const Sights<Team>& sights) {
  const int lane = lane_of(b);
  int k = 0;
  for (int i = team.index(); i < kSights * cfg::kRings; i += team.count()) {
    s.work.seen[i / kSights][i % kSights] = sights.word[k++];
  }
  team.sync();
  team.each(cfg::kRings, [&](int r) { take_sights(s, r, m.rings[r], lane); });
  team.sync();
  bool marked = false;
  for (int r = 0; r < cfg::kRings; ++r) {
    const bool anew = s.rings[r].turned || s.rings[r].aborts > 0;
    if (anew) mark(team, s, r, m.rings[r]);
    marked = marked || anew || s.rings[r].marked[lane];
  }
  if (marked) end_marked(team, s, b);
  team.sync();
  if (team.leader()) {
    bool ended = false;
    for (int r = 0; r < cfg::kRings; ++r) {
      RingState& ring = s.rings[r];
      RingControl& control = m.rings[r].control;
      s.counters.epochs += ring.turned ? 1 : 0;
      ended = ended || ring.ended.head != kNone;
      for (bool& left : ring.marked) left = left || ring.turned || ring.aborts > 0;
      ring.marked[lane] = false;
      ring.abort_read += ring.aborts;
      if (ring.turned || ring.aborts > 0) publish(control.abort_read, ring.abort_read);
      if (ring.turned) {
        publish(control.submit_read, ring.submit_read);
        publish(control.seen_epoch, ring.epoch);
      }
    }
    if (ended) report_ends(s, m);  // before others look for request slots
  }
  accept(team, s, m);
  if (team.leader()) report_ends(s, m);
  team.sync();
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

}  // namespace dp
