// What a request must be before it enters a ring. The ring library asks before it writes, the scheduler when it reads:
// by then a fault means a broken frontend, and the request ends with an error.
#pragma once
#include <cstdint>

#include "common/layout.hpp"
#include "common/portable.hpp"

namespace dp {

constexpr uint32_t kHighestPriority = 255;

enum class Fault {
  kSound,
  kEmptyPrompt,
  kContext,
  kMinTokens,
  kStopCount,
  kTemperature,
  kTopK,
  kTopP,
  kMinP,
  kRepetition,
  kPenalties,
  kBiasCount,
  kLogprobs,
  kPromptLogprobs,
  kPriority,
};

// Words of an arena span: parameters, stop ids, biased ids, their biases, prompt, a key for each page that it fills.
DP_FN constexpr uint64_t span_words(const RequestParams& p) {
  return sizeof(RequestParams) / 4 + uint64_t{p.stop_count} + 2 * uint64_t{p.bias_count} + p.prompt_tokens +
         2 * uint64_t{p.prompt_tokens / cfg::kPageSize};
}

DP_FN constexpr bool in_vocabulary(int32_t token) { return token >= 0 && token < cfg::kVocab; }

constexpr float kLeastRepetition = 0.01f;  // what a logit is divided by: below, the quotient might be no number
constexpr float kMostPenalty = 2.0f;
constexpr float kMostBias = 100.0f;

DP_FN constexpr bool within(float value, float most) { return value >= -most && value <= most; }

// Ids of biases rise, so that each logit has one at most.
DP_FN constexpr bool sound_bias(const int32_t* ids, int i, float bias) {
  return in_vocabulary(ids[i]) && (i == 0 || ids[i - 1] < ids[i]) && within(bias, kMostBias);
}

// Everything but the ids themselves. Comparisons are written so that a NaN fails them.
DP_FN constexpr Fault check(const RequestParams& p) {
  constexpr uint32_t kContext = cfg::kMaxContext;
  if (p.prompt_tokens == 0) return Fault::kEmptyPrompt;
  if (p.prompt_tokens > kContext || p.max_tokens > kContext - p.prompt_tokens) return Fault::kContext;
  if (p.min_tokens > p.max_tokens) return Fault::kMinTokens;
  if (p.stop_count > kMaxStopTokens) return Fault::kStopCount;
  if (!(p.temperature >= 0.0f && p.temperature <= 100.0f)) return Fault::kTemperature;
  if (p.top_k > INT32_MAX) return Fault::kTopK;
  if (!(p.top_p > 0.0f && p.top_p <= 1.0f)) return Fault::kTopP;
  if (!(p.min_p >= 0.0f && p.min_p <= 1.0f)) return Fault::kMinP;
  if (!(p.repetition_penalty >= kLeastRepetition && p.repetition_penalty <= 1 / kLeastRepetition)) {
    return Fault::kRepetition;
  }
  if (!within(p.presence_penalty, kMostPenalty) || !within(p.frequency_penalty, kMostPenalty)) return Fault::kPenalties;
  if (p.bias_count > kMaxBias) return Fault::kBiasCount;
  if (p.logprobs > kMaxTopLogprobs + 1) return Fault::kLogprobs;
  if (p.prompt_logprobs > kMaxTopLogprobs + 1) return Fault::kPromptLogprobs;
  if (p.priority > kHighestPriority) return Fault::kPriority;
  return Fault::kSound;
}

}  // namespace dp
