// Records out: tokens and ends of requests.
#pragma once
#include "common/leave.hpp"
#include "common/ring.hpp"
#include "common/state.hpp"

namespace dp {

// What a record says beside the state of its request. `position` is that of a token of the prompt, kNone for one that
// was generated; `top`: the most probable tokens, if they were asked for.
struct Said {
  int32_t token, position;
  float logprob;
  const TopLogprobs* top;
};
constexpr Said kNothing = {kNone, kNone, 0.0f, nullptr};

// Writes the record after the `nth` unwritten one of a ring. The caller knows that the ring has room.
DP_FN inline void write_record(State& s, Ring& memory, RingState& ring, int32_t nth, int32_t q, Said said) {
  const uint32_t index = ring.token_written + static_cast<uint32_t>(nth);
  const bool of_prompt = said.position != kNone;
  const int32_t generated = s.requests.length[q] - s.requests.prompt[q];
  const int32_t place = of_prompt ? said.position : said.token == kNone ? generated : generated - 1;
  TokenRecord& record = memory.tokens[index % cfg::kTokenSlots];
  record.tag = s.requests.tag[q];
  record.index = static_cast<uint32_t>(place);
  record.token = said.token;
  record.logprob = said.logprob;
  record.finish = static_cast<uint32_t>(of_prompt ? Finish::kNone : s.requests.finish[q]);
  record.prompt_tokens = static_cast<uint32_t>(s.requests.prompt[q]);
  record.cached_tokens = static_cast<uint32_t>(s.requests.cached[q]);
  const Sampling& params = s.requests.sampling[q];
  const int tops = said.top == nullptr ? 0 : most(0, (of_prompt ? params.prompt_logprobs : params.logprobs) - 1);
  record.top_count = static_cast<uint32_t>(tops);
  record.of_prompt = of_prompt ? 1 : 0;
  TopLogprobs& top = memory.tops[index % cfg::kTokenSlots];
  for (int k = 0; k < tops; ++k) {
    top.token[k] = said.top->token[k];
    top.logprob[k] = said.top->logprob[k];
  }
  publish(record.flag, record_flag(ring.epoch, index));
}

// Writes the last records that wait, as far as their rings have room. Those of past epochs nobody reads.
DP_FN inline void report_ends(State& s, RingMemory& m) {
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
