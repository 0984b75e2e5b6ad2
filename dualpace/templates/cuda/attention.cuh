// The work and the partial results of attention, shared by all that make either.
#pragma once
#include "common/layout.hpp"
#include "cuda/element.cuh"

namespace dp {

// Keys [begin, end) for one query token, all its heads.
struct AttentionTask {
  int32_t token;
  int32_t begin;
  int32_t end;
};

// One task a token always fits; the rest is for splitting the rows of long contexts over the whole GPU.
constexpr int kMaxAttentionTasks = cfg::kMaxStepTokens + 1024;

// The tasks of one layer group in a step, ordered by token: those of token t are [first[t], first[t + 1]).
struct AttentionTasks {
  int32_t count;
  int32_t first[cfg::kMaxStepTokens + 1];
  AttentionTask task[kMaxAttentionTasks];
};

// A task's partial result has the task's index: the output over its keys alone, normalised, and the natural logarithm
// of the sum of exponentials (minus infinity if no key was seen). Whoever writes both, dp_attention_merge combines
// them.
struct AttentionWorkspace {
  AttentionTasks tasks[cfg::kGroups];
  float lse[kMaxAttentionTasks][cfg::kHeads];
  alignas(16) float partial[kMaxAttentionTasks][cfg::kHeads][cfg::kHeadDim];
};

}  // namespace dp
