// Samples one of a step's tokens into its step buffers, or gives the prompt's own next token its logprob.
#pragma once
#include "common/adjust.hpp"
#include "common/sampler.hpp"
#include "common/state.hpp"

namespace dp {

// `logits` [cfg::kVocab]; `scratch` likewise, the team's own.
template <class Team>
DP_FN void sample(Team& team, const State& s, StepBuffers& b, int i, const float* logits, float* scratch,
                  SamplerMemory& memory) {
  const Requests& requests = s.requests;
  const int32_t q = s.rows.request[b.sample_slot[i]], length = requests.length[q], n = s.vocabulary;
  const Sampling& params = requests.sampling[q];
  Sampler<Team> sampler(team, memory);
  if (i < static_cast<int>(b.scored)) {
    const int32_t next = history_token(s, q, b.position[b.sample_index[i]] + 1);
    const Scale scale = sampler.rank(logits, n, params.prompt_logprobs - 1, b.top[i]);
    if (team.leader()) {
      // Padding is never drawn, so it is as improbable as can be.
      const float logprob = next < n ? scale.logprob(logits[next]) : -__builtin_huge_valf();
      b.sampled[i] = scale.sound ? next : kNone;
      b.logprob[i] = scale.sound ? logprob : 0.0f;
    }
    return;
  }
  Scale scale = {};
  if (params.logprobs > 0) scale = sampler.rank(logits, n, params.logprobs - 1, b.top[i]);
  const Adjustment adjustment = {
      .prompt = requests.prompt[q],
      .length = length,
      .repetition_penalty = params.repetition_penalty,
      .presence_penalty = params.presence_penalty,
      .frequency_penalty = params.frequency_penalty,
      .bias_count = requests.bias_count[q],
      // A stop id before the least length is not sampled, rather than passed over.
      .banned_count = length < requests.shortest[q] ? requests.stop_count[q] : 0,
      .bias_id = requests.bias_id[q],
      .bias = requests.bias[q],
      .banned = requests.stop[q],
  };
  const float* adjusted =
      adjust(team, logits, n, adjustment, [&](int32_t at) { return history_token(s, q, at); }, scratch);
  const int32_t token = sampler.draw(adjusted, n, params, static_cast<uint32_t>(length));
  if (team.leader()) {
    b.sampled[i] = token;
    b.logprob[i] = params.logprobs > 0 && token >= 0 ? scale.logprob(logits[token]) : 0.0f;
  }
}

}  // namespace dp
