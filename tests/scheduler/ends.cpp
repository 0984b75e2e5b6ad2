// Both ends of the rings at once: the engine steps in one thread, and parks as soon as it may, while each frontend
// submits and aborts in one and reads in another, as a process would. The last frontend is broken: it goes on writing
// to what it has submitted, which the engine may be reading. `ends REQUESTS`, of each frontend.
#include <atomic>
#include <random>
#include <thread>

#include "ring_file.hpp"

namespace {

using namespace dp;

constexpr int kPrompt = 2 * cfg::kPageSize + 3;
constexpr uint32_t kTokens = 9;

// What each request ends with, and that its tokens come in order, untorn. Of a broken frontend's, that each ends once.
void read_all(Frontend& frontend, uint64_t requests, bool broken) {
  std::vector<uint32_t> next(requests);
  TokenRecord records[cfg::kTokenSlots];
  TopLogprobs tops[cfg::kTokenSlots];
  for (uint64_t ended = 0; ended < requests;) {
    const int n = dp_ring_wait(&frontend, records, tops, cfg::kTokenSlots, 100'000);
    for (int i = 0; i < n; ++i) {
      const TokenRecord& record = records[i];
      if (broken && record.of_prompt != 0) continue;
      expect(record.tag < requests && record.index == next[record.tag], "an event is lost or torn");
      const auto finish = static_cast<Finish>(record.finish);
      expect(broken || record.token == kNone ||
                 record.token == static_cast<int32_t>((record.tag + record.index) % cfg::kVocab),
             "a token is torn");
      if (record.token != kNone) ++next[record.tag];
      if (finish == Finish::kNone) continue;
      ++ended;
      const bool early = record.tag % 3 == 0 && (finish == Finish::kAbort || finish == Finish::kStop);
      expect(broken || early || (finish == Finish::kLength && next[record.tag] == kTokens), "a wrong end");
      next[record.tag] = UINT32_MAX;
    }
  }
}

// Writes nonsense over what is in the ring, a word at a time.
void scribble(Ring& ring, std::minstd_rand& random) {
  for (SubmitRecord& record : ring.submits) {
    const uint32_t begin = record.arena_begin;
    for (uint32_t i = 0; i < sizeof(RequestParams) / 4 + kPrompt; ++i) {
      const auto value = static_cast<uint32_t>(random() % 4 == 0 ? random() : random() % 64);
      if (random() % 8 == 0) show(ring.arena[(begin + i) % cfg::kArenaWords], value);
    }
    // Not within the arena: the engine would read what the library writes for a later request, which is a race.
    if (random() % 8 == 0) show(record.arena_begin, static_cast<uint32_t>(cfg::kArenaWords + random() % 64));
  }
}

void write_all(Frontend& frontend, uint64_t requests, bool broken) {
  std::minstd_rand random;
  RequestParams params = {};
  params.prompt_tokens = kPrompt;
  params.max_tokens = kTokens;
  params.top_p = params.repetition_penalty = 1.0f;
  char error[256] = {};
  for (uint64_t tag = 0; tag < requests; ++tag) {
    // The tag is in the prompt, from which the engine's thread makes the tokens.
    int32_t prompt[kPrompt];
    for (int i = 0; i < kPrompt; ++i) prompt[i] = static_cast<int32_t>(i == 0 ? tag % cfg::kVocab : tag % 2);
    const uint32_t index = frontend.submitted;
    while (dp_ring_submit(&frontend, tag, &params, prompt, error, sizeof error) == 0) std::this_thread::yield();
    if (broken) scribble(frontend.ring, random);
    if (tag % 3 == 0) {
      while (dp_ring_end(&frontend, index, tag % 2 == 0 ? 1 : 0) == 0) std::this_thread::yield();
    }
  }
}

}  // namespace

int main(int count, char** arguments) {
  if (count != 2) return 2;
  const uint64_t requests = std::strtoull(arguments[1], nullptr, 10);
  RingFile file;
  Engine& engine = engine_of(dp_engine_create(&file.memory(), cfg::kVocab, 1));
  std::vector<Frontend*> frontends;
  for (int r = 0; r < cfg::kRings; ++r) frontends.push_back(file.claim(r));
  std::atomic<bool> done = false;
  std::jthread stepping([&] {
    while (!done) {
      dp_engine_schedule(&engine, 0);
      StepBuffers& b = engine.buffers;
      for (int i = 0; i < static_cast<int>(b.samples); ++i) {
        const int32_t q = engine.state->rows.request[b.sample_slot[i]];
        const int32_t generated = engine.state->requests.length[q] - engine.state->requests.prompt[q];
        b.sampled[i] = (history_token(*engine.state, q, 0) + generated) % cfg::kVocab;
      }
      if (b.rows == 0 && park(*engine.state, file.memory())) {
        while (!done && !await_wake(file.memory(), 10'000)) {
        }
      }
      EngineStatus status;
      dp_ring_status(frontends[0], &status);
      expect(status.running <= static_cast<uint32_t>(cfg::kMaxBatch), "a status is torn");
    }
  });
  {
    std::vector<std::jthread> sides;
    for (Frontend* frontend : frontends) {
      const bool broken = frontend == frontends.back();
      sides.emplace_back([=] { write_all(*frontend, requests, broken); });
      sides.emplace_back([=] { read_all(*frontend, requests, broken); });
    }
  }
  done = true;
  stepping.join();
  for (Frontend* frontend : frontends) RingFile::release(frontend);
  dp_engine_schedule(&engine, 0);
  expect(at_rest(*engine.state), "something is held at rest");
  dp_engine_destroy(&engine);
  std::printf("{\"ended\": %llu}\n", static_cast<unsigned long long>(requests * frontends.size()));
}
