// The work of attention, and how partial results are handed to the merge.
#pragma once
#include "common/layout.hpp"
#include "cuda/element.cuh"

namespace dp {

// One task a token always fits; the rest is for splitting the rows of long contexts over the whole GPU.
constexpr int kMaxAttentionTasks = cfg::kMaxStepTokens + cfg::kSpareTasks;

// Keys [begin, end) for one query token, all its heads.
struct AttentionTask {
  int32_t token;
  int32_t begin;
  int32_t end;
};

// The tasks of one layer group in a step, ordered by token: those of token t are [first[t], first[t + 1]).
struct AttentionTasks {
  int32_t count;
  int32_t first[cfg::kMaxStepTokens + 1];
  AttentionTask task[kMaxAttentionTasks];
};

// Partial results, by task: the output over its keys alone, normalised, and the natural logarithm of the sum of
// exponentials, minus infinity if no key was seen. Whoever produces them, dp_attention_merge combines them.
using PartialOut = float[cfg::kHeads][cfg::kHeadDim];
using PartialLse = float[cfg::kHeads];

}  // namespace dp
