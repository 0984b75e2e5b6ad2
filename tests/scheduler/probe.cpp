// The host engine with a view inside: what tests check after each step, and parts of the sampler on their own.
#include <cstring>
#include <functional>
#include <thread>

#include "host/engine.cpp"
#include "invariants.hpp"

namespace {

using namespace dp;

void together(int threads, const std::function<void(ThreadTeam&)>& run) {
  ThreadTeam::Meeting meeting(threads);
  std::vector<std::jthread> members;
  for (int t = 0; t < threads; ++t) {
    members.emplace_back([&, t] {
      ThreadTeam team(meeting, t);
      run(team);
    });
  }
}

// Members that share a meeting, or one thread alone.
template <class Run>
void with_team(int threads, Run run) {
  if (threads > 1) return together(threads, run);
  SerialTeam team;
  run(team);
}

}  // namespace

extern "C" {

const char* probe_invariants(void* handle) {
  Engine& engine = engine_of(handle);
  return broken(*engine.state, engine.lanes.get());
}

int probe_at_rest(void* handle) { return at_rest(*engine_of(handle).state) ? 1 : 0; }

void probe_schedule(void* handle, int threads) {
  Engine& engine = engine_of(handle);
  together(threads, [&](ThreadTeam& team) { schedule(team, *engine.state, engine.buffers, engine.memory); });
}

void probe_draw(const float* logits, int n, float temperature, int top_k, float top_p, float min_p, uint64_t seed,
                uint32_t position, int threads, int32_t* token) {
  const Sampling params = {seed, temperature, top_p, min_p, top_k, 1.0f, 0.0f, 0.0f, 0, 0};
  SamplerMemory memory;
  with_team(threads, [&](auto& team) {
    const int32_t drawn = Sampler(team, memory).draw(logits, n, params, position);
    if (team.leader()) *token = drawn;
  });
}

// The logprobs of all ids, and the `count` best to a TopLogprobs at `top`, which need not be aligned.
void probe_rank(const float* logits, int n, int count, int threads, float* logprobs, void* top) {
  SamplerMemory memory;
  TopLogprobs best = {};
  with_team(threads, [&](auto& team) {
    const Scale scale = Sampler(team, memory).rank(logits, n, count, best);
    team.each(n, [&](int i) { logprobs[i] = scale.logprob(logits[i]); });
  });
  std::memcpy(top, &best, sizeof best);
}

void probe_adjust(const float* logits, int n, const int32_t* history, int prompt, int length, float repetition,
                  float presence, float frequency, int bias_count, const int32_t* bias_id, const float* bias,
                  int banned_count, const int32_t* banned, int threads, float* adjusted) {
  const Adjustment adjustment = {prompt,     length,       repetition, presence, frequency,
                                 bias_count, banned_count, bias_id,    bias,     banned};
  with_team(threads, [&](auto& team) {
    const float* result = adjust(team, logits, n, adjustment, [&](int32_t at) { return history[at]; }, adjusted);
    if (result == logits) team.each(n, [&](int i) { adjusted[i] = logits[i]; });
  });
}

void probe_philox(const uint32_t* counter, const uint32_t* key, uint32_t* out) {
  const Philox drawn = philox({{counter[0], counter[1], counter[2], counter[3]}}, key[0], key[1]);
  for (int i = 0; i < 4; ++i) out[i] = drawn.word[i];
}

void probe_exp(const float* x, float* y, int n) {
  for (int i = 0; i < n; ++i) y[i] = exact_exp(x[i]);
}

void probe_log(const float* x, float* y, int n) {
  for (int i = 0; i < n; ++i) y[i] = exact_log(x[i]);
}

}  // extern "C"
