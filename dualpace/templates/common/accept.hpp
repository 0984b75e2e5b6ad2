// From a submit record to a queued request: its parameters are checked, its prompt is copied to the history, and its
// span of the arena is free again. A request that finds no place stays in its ring, and holds up those behind it alone.
#pragma once
#include "common/exact.hpp"
#include "common/leave.hpp"
#include "common/request.hpp"
#include "common/ring.hpp"
#include "common/share.hpp"
#include "common/state.hpp"
#include "common/team.hpp"

namespace dp {

DP_FN constexpr int history_pages(int tokens) { return (tokens + cfg::kHistoryPage - 1) / cfg::kHistoryPage; }

// Whether the queue takes a prompt now. Open rings share its limits evenly, and a ring with none queued takes any
// prompt.
DP_FN inline bool has_place(const State& s, int r, int prompt) {
  const RingState& ring = s.rings[r];
  if (!leaves_history(s, r, history_pages(prompt), 0)) return false;
  if (ring.queued == 0) return true;
  const int open = open_rings(s);
  return ring.queued < most(1, cfg::kMaxQueuedRequests / open) &&
         ring.queued_tokens + prompt <= cfg::kMaxQueuedTokens / open;
}

// Reads the span once into `incoming` and `q`'s stop ids; false if it is not what a ring library writes.
DP_FN inline bool read_span(State& s, const Ring& memory, const SubmitRecord& record, int32_t q) {
  constexpr uint32_t kHead = sizeof(RequestParams) / 4;
  const uint32_t begin = glance(record.arena_begin), words = glance(record.arena_words);
  if (glance(record.type) != static_cast<uint32_t>(RecordType::kSubmit)) return false;
  if (words < kHead || words > cfg::kArenaWords || begin > cfg::kArenaWords - words) return false;
  RequestParams& params = s.incoming.params;
  for (uint32_t i = 0; i < kHead; ++i) reinterpret_cast<uint32_t*>(&params)[i] = glance(memory.arena[begin + i]);
  if (check(params) != Fault::kSound || span_words(params) != words) return false;
  if (static_cast<int>(params.prompt_tokens + least(params.max_tokens, 1u)) > kLongestHistory) return false;
  for (uint32_t i = 0; i < params.stop_count; ++i) {
    s.requests.stop[q][i] = static_cast<int32_t>(glance(memory.arena[begin + kHead + i]));
    if (!in_vocabulary(s.requests.stop[q][i])) return false;
  }
  s.incoming.bias_begin = begin + kHead + params.stop_count;
  s.incoming.prompt_begin = s.incoming.bias_begin + 2 * params.bias_count;
  return true;
}

// The leader's part: sets `incoming`, and the request slot apart from its history.
DP_FN inline void take_record(State& s, int r, const Ring& memory, uint32_t index) {
  RingState& ring = s.rings[r];
  Requests& requests = s.requests;
  Incoming& incoming = s.incoming;
  incoming.request = kNone;
  incoming.refused = false;
  // A frontend that does not read could submit and abort for ever: each end would wait in a request slot.
  ring.blocked = ring.room == 0 || !leaves_slots(s, r);
  if (ring.blocked) return;
  const int32_t q = requests.free.item[requests.free.count - 1];
  const uint32_t at = index % cfg::kRequestSlots;
  const Finish cancelled = s.cancelled[r][at];
  const bool sound = read_span(s, memory, memory.submits[at], q);
  const RequestParams& p = incoming.params;
  const int prompt = sound ? static_cast<int>(p.prompt_tokens) : 0;
  if (sound && cancelled == Finish::kNone) {
    ring.blocked = !has_place(s, r, prompt);
    if (ring.blocked) return;
  }
  --requests.free.count;
  ++ring.requests;
  ++s.counters.accepted;  // whatever becomes of it: each is counted where it ends, too
  s.cancelled[r][at] = Finish::kNone;
  incoming.request = q;
  requests.ring[q] = static_cast<uint8_t>(r);
  requests.epoch[q] = ring.epoch;
  requests.index[q] = index;
  requests.tag[q] = glance(memory.submits[at].tag);
  requests.row[q] = kNone;
  requests.lane[q] = Lane::kFast;
  requests.finish[q] = Finish::kNone;
  requests.prompt[q] = requests.length[q] = prompt;
  requests.computed[q] = requests.cached[q] = requests.history_count[q] = requests.left_out[q] = 0;
  if (cancelled != Finish::kNone || !sound) {
    incoming.refused = true;
    s.counters.malformed += cancelled != Finish::kNone ? 0 : 1;
    end_request(s, q, cancelled != Finish::kNone ? cancelled : Finish::kError);
    return;
  }
  requests.turn[q] = ring.arrivals - int64_t{kHeadStart} * p.priority;
  requests.longest[q] = least(prompt + static_cast<int>(p.max_tokens), kLongestHistory);
  requests.sparse[q] = kOffload && p.sparse != 0;
  // A plan whose slow rows have no KV in host memory has every other request slow.
  const bool slow = kOffload ? !fits_card(requests.longest[q]) : kLaneCount > 1 && index % 2 == 1;
  requests.lane[q] = slow ? Lane::kSlow : Lane::kFast;
  requests.shortest[q] = prompt + static_cast<int>(p.min_tokens);
  requests.stop_count[q] = static_cast<int32_t>(p.stop_count);
  requests.bias_count[q] = static_cast<int32_t>(p.bias_count);
  requests.sampling[q] = {p.seed,
                          p.temperature,
                          p.top_p,
                          p.min_p,
                          static_cast<int32_t>(p.top_k),
                          p.repetition_penalty,
                          p.presence_penalty,
                          p.frequency_penalty,
                          static_cast<int32_t>(p.logprobs),
                          static_cast<int32_t>(p.prompt_logprobs)};
  requests.scored[q] = p.prompt_logprobs > 0 ? 0 : cfg::kMaxContext;
  requests.history_count[q] = history_pages(prompt);
  for (int i = 0; i < requests.history_count[q]; ++i) {
    requests.history[q][i] = s.history.free.item[--s.history.free.count];
  }
}

// Copies the biases; how many of them are none that a ring library writes.
template <class Team>
DP_FN uint64_t copy_biases(Team& team, State& s, const Ring& memory) {
  const int32_t q = s.incoming.request;
  const uint32_t begin = s.incoming.bias_begin;
  int32_t* ids = s.requests.bias_id[q];
  float* biases = s.requests.bias[q];
  const int count = s.requests.bias_count[q];
  team.each(count, [&](int i) {
    ids[i] = static_cast<int32_t>(glance(memory.arena[begin + static_cast<uint32_t>(i)]));
    biases[i] = float_of(glance(memory.arena[begin + static_cast<uint32_t>(count + i)]));
  });
  return team.reduce(count, [&](int i) { return uint64_t{sound_bias(ids, i, biases[i]) ? 0u : 1u}; }, Sum());
}

template <class Team>
DP_FN void copy_prompt(Team& team, State& s, const Ring& memory) {
  const int32_t q = s.incoming.request, prompt = s.requests.prompt[q];
  const uint32_t begin = s.incoming.prompt_begin;
  uint64_t faults = copy_biases(team, s, memory);
  faults += team.reduce(
      prompt,
      [&](int i) {
        const int32_t token = static_cast<int32_t>(glance(memory.arena[begin + static_cast<uint32_t>(i)]));
        history_token(s, q, i) = token;
        return uint64_t{in_vocabulary(token) ? 0u : 1u};
      },
      Sum());
  const int pages = prompt / cfg::kPageSize;
  team.each(pages, [&](int page) {
    const uint32_t* words = &memory.arena[begin + static_cast<uint32_t>(prompt + 2 * page)];
    history_key(s, q, page) = uint64_t{glance(words[1])} << 32 | glance(words[0]);
  });
  if (!team.leader()) return;
  if (faults == 0) {
    ++s.rings[s.requests.ring[q]].arrivals;
    s.requests.keyed[q] = pages;
    s.requests.fresh[q] = true;
    s.rings[s.requests.ring[q]].prompts += s.requests.history_count[q];
    enqueue(s, q, false);
  } else {
    ++s.counters.malformed;
    for (int i = 0; i < s.requests.history_count[q]; ++i) {
      s.history.free.item[s.history.free.count++] = s.requests.history[q][i];
    }
    s.requests.history_count[q] = 0;
    end_request(s, q, Finish::kError);
  }
}

template <class Team>
DP_RARE void accept(Team team, State s, RingMemory& m) {
  for (int i = 0; i < cfg::kRings; ++i) {
    const int r = (s.ring_turn + i) % cfg::kRings;
    RingState& ring = s.rings[r];
    uint32_t accepted = 0;
    while (accepted < ring.submits) {
      team.sync();
      if (team.leader()) take_record(s, r, m.rings[r], ring.submit_read + accepted);
      team.sync();
      if (s.incoming.request == kNone) break;
      if (!s.incoming.refused) copy_prompt(team, s, m.rings[r]);
      ++accepted;
    }
    team.sync();
    if (team.leader() && accepted > 0) {
      ring.submit_read += accepted;
      publish(m.rings[r].control.submit_read, ring.submit_read);
    }
  }
  team.sync();
}

}  // namespace dp
