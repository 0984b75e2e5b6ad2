// Records out: tokens and ends of requests.
#pragma once
#include "common/leave.hpp"
#include "common/ring.hpp"
#include "common/state.hpp"
#include "common/team.hpp"

namespace dp {

// What a record says beside the state of its request. `position` is that of a token of the prompt, kNone for one that
// was generated; `top`: the most probable tokens, if they were asked for.
struct Said {
  int32_t token, position;
  float logprob;
  const TopLogprobs* top;
};
constexpr Said kNothing = {kNone, kNone, 0.0f, nullptr};

// Writes the record after the `nth` unwritten one of a ring, all but its flag. The caller knows that the ring has room.
DP_FN inline void write_record(State& s, Ring& memory, RingState& ring, int32_t nth, int32_t q, Said said) {
  const uint32_t at = (ring.token_written + static_cast<uint32_t>(nth)) % cfg::kTokenSlots;
  const bool of_prompt = said.position != kNone;
  const int32_t generated = s.requests.length[q] - s.requests.prompt[q];
  const int32_t place = of_prompt ? said.position : said.token == kNone ? generated : generated - 1;
  const Sampling& params = s.requests.sampling[q];
  const int tops = said.top == nullptr ? 0 : most(0, (of_prompt ? params.prompt_logprobs : params.logprobs) - 1);
  const uint64_t tag = s.requests.tag[q];
  const auto prompt = static_cast<uint32_t>(s.requests.prompt[q]), cached = static_cast<uint32_t>(s.requests.cached[q]);
  const auto finish = static_cast<uint32_t>(of_prompt ? Finish::kNone : s.requests.finish[q]);
  TokenRecord& record = memory.tokens[at];
  record.tag = tag;
  record.index = static_cast<uint32_t>(place);
  record.token = said.token;
  record.logprob = said.logprob;
  record.finish = finish;
  record.prompt_tokens = prompt;
  record.cached_tokens = cached;
  record.top_count = static_cast<uint32_t>(tops);
  record.of_prompt = of_prompt ? 1 : 0;
  record.sparse_tokens = kOffload ? static_cast<uint32_t>(s.requests.left_out[q]) : 0;
  TopLogprobs& top = memory.tops[at];
  for (int k = 0; k < tops; ++k) {
    top.token[k] = said.top->token[k];
    top.logprob[k] = said.top->logprob[k];
  }
}

// Stores the flags of the records that were written in this step, all at once, and their count for a reader that has to
// ask over a network: what it asks for once it has seen the count is whole, though a flag may come later still. To
// order all of it behind what the records hold costs the device a round trip to host memory.
template <class Team>
DP_FN void announce(Team& team, const State& s, RingMemory& m) {
  settle();
  for (int r = 0; r < cfg::kRings; ++r) {
    RingState& ring = s.rings[r];
    const uint32_t first = ring.announced, count = ring.token_written - first;
    team.each(static_cast<int>(count), [&](int k) {
      const uint32_t index = first + static_cast<uint32_t>(k);
      post(m.rings[r].tokens[index % cfg::kTokenSlots].flag, record_flag(ring.epoch, index));
    });
  }
  team.sync();
  team.each(cfg::kRings, [&](int r) {
    RingState& ring = s.rings[r];
    if (ring.announced != ring.token_written) {
      post(m.rings[r].control.token_written, uint64_t{ring.epoch} << 32 | ring.token_written);
    }
    ring.announced = ring.token_written;
  });
}

// Writes the last records that wait, as far as their rings have room. Those of past epochs nobody reads.
DP_RARE inline void report_ends(State s, RingMemory& m) {
  for (int r = 0; r < cfg::kRings; ++r) {
    RingState& ring = s.rings[r];
    while (ring.ended.head != kNone) {
      const int32_t q = ring.ended.head;
      if (s.requests.epoch[q] == ring.epoch) {
        if (ring.room == 0) break;
        write_record(s, m.rings[r], ring, 0, q, kNothing);
        ++ring.token_written;
        --ring.room;
      }
      const Finish finish = s.requests.finish[q];
      ++(finish == Finish::kAbort  ? s.counters.aborted
         : finish == Finish::kStop ? s.counters.finished
                                   : s.counters.failed);
      unlink(s.requests, ring.ended, q);
      free_request(s, q);
    }
  }
}

}  // namespace dp
