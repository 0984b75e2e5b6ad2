// What a request asks of its logits before they are sampled: penalties for the tokens of its history, then biases, then
// bans, so that a bias is added to what the penalties leave.
//
// Penalties count the history anew at each token. A table of counts a row would save that, and cost rows x vocabulary
// words of memory and a pass over them; what the scan reads is below a hundredth of the row's KV, which attention has
// just read.
#pragma once
#include <cstdint>

#include "common/exact.hpp"
#include "common/layout.hpp"
#include "common/portable.hpp"

namespace dp {

struct Adjustment {
  int32_t prompt, length;  // tokens of the prompt, and of the history with what was generated
  float repetition_penalty, presence_penalty, frequency_penalty;
  int bias_count, banned_count;
  const int32_t* bias_id;
  const float* bias;
  const int32_t* banned;
};

// A token of the history whose id was generated `count` times. The repetition penalty makes it less likely whichever
// sign its logit has (Keskar et al., "CTRL", 2019); the other two are the OpenAI API's.
DP_FN inline float penalised(float logit, float count, const Adjustment& a) {
  const float repeated = logit > 0.0f ? logit / a.repetition_penalty : product(logit, a.repetition_penalty);
  return repeated - product(a.frequency_penalty, count) - (count > 0.0f ? a.presence_penalty : 0.0f);
}

// Sets `counts` [n] to -1 for ids that no penalty is for, and else to how often they were generated. Floats, for they
// lie where the adjusted logits will, and whole numbers this small add up exactly in any order.
template <class Team, class TokenAt>
DP_FN void count_tokens(Team& team, const Adjustment& a, TokenAt token_at, float* counts, int n) {
  static_assert(cfg::kMaxContext < 1 << 24, "a count of tokens has to be exact in fp32");
  const int32_t first = a.repetition_penalty == 1.0f ? a.prompt : 0;
  team.each(n, [&](int i) { counts[i] = -1.0f; });
  team.sync();
  team.each(a.length - first, [&](int i) {
    const int32_t token = token_at(first + i);
    if (token < n) show(counts[token], 0.0f);
  });
  team.sync();
  if (a.presence_penalty != 0.0f || a.frequency_penalty != 0.0f) {
    team.each(a.length - a.prompt, [&](int i) {
      const int32_t token = token_at(a.prompt + i);
      if (token < n) add(counts[token], 1.0f);
    });
  }
  team.sync();
}

// The logits to sample from: `logits` [n] themselves if nothing is asked, or `adjusted` [n]. `token_at(i)` is the
// history's. A logit that is NaN or plus infinity stays one.
template <class Team, class TokenAt>
DP_FN const float* adjust(Team& team, const float* logits, int n, const Adjustment& a, TokenAt token_at,
                          float* adjusted) {
  constexpr float kInfinity = __builtin_huge_valf();
  const bool penalises = a.repetition_penalty != 1.0f || a.presence_penalty != 0.0f || a.frequency_penalty != 0.0f;
  if (!penalises && a.bias_count == 0 && a.banned_count == 0) return logits;
  if (penalises) {
    count_tokens(team, a, token_at, adjusted, n);
    team.over(logits, n,
              [&](int i, float logit) { adjusted[i] = adjusted[i] < 0.0f ? logit : penalised(logit, adjusted[i], a); });
  } else {
    team.over(logits, n, [&](int i, float logit) { adjusted[i] = logit; });
  }
  team.sync();
  team.each(a.bias_count, [&](int i) {
    if (a.bias_id[i] < n) adjusted[a.bias_id[i]] += a.bias[i];
  });
  team.sync();
  team.each(a.banned_count, [&](int i) {
    const int32_t id = a.banned[i];
    if (id < n && adjusted[id] < kInfinity) adjusted[id] = -kInfinity;
  });
  team.sync();
  return adjusted;
}

}  // namespace dp
