// The work of attention: what a task is, who does it, and where its result goes.
#pragma once
#include "common/attention_cost.hpp"
#include "common/layout.hpp"
#include "cuda/element.cuh"

namespace dp {

// Products run on the tensor cores where these take the element type and whole tiles of a head.
constexpr bool kTensorCores = cfg::kElementBytes == 2 && cfg::kHeadDim % 16 == 0 && cfg::kHeadDim <= 256;

// A slice is the query heads of one KV head that a CTA attends together, so that their KV is read once. Only a group
// too large for the registers has more than one; the last may then have fewer heads than the others.
constexpr int kMaxSliceHeads = kTensorCores ? 16 : 8;
constexpr int kGroupSlices = (cfg::kGqaRatio + kMaxSliceHeads - 1) / kMaxSliceHeads;
constexpr int kSliceHeads = (cfg::kGqaRatio + kGroupSlices - 1) / kGroupSlices;
constexpr int kSlices = cfg::kKvHeads * kGroupSlices;

inline __device__ int kv_head_of(int slice) { return slice / kGroupSlices; }
inline __device__ int first_head_of(int slice) {
  return kv_head_of(slice) * cfg::kGqaRatio + slice % kGroupSlices * kSliceHeads;
}
inline __device__ int heads_of(int slice) {
  const int left = cfg::kGqaRatio - slice % kGroupSlices * kSliceHeads;
  return left < kSliceHeads ? left : kSliceHeads;
}

// Keys [begin, end), at least one, for one slice of the heads of one query token. A whole of 16-byte loads.
struct alignas(32) AttentionTask {
  int32_t token;
  int32_t row_slot;
  int32_t slice;
  int32_t first;  // task of this slice of this token
  int32_t tasks;  // of it
  int32_t begin;
  int32_t end;
};

// The list is cut into shares, a CTA each; more of them than any GPU runs at once.
constexpr int kMaxShares = 1024;

// Each token has a task of each slice, and each share cuts at most one more; the rest is for splits.
constexpr int kMaxSliceTasks = cfg::kMaxStepTokens + cfg::kSpareTasks;
constexpr int kMaxAttentionTasks = kMaxSliceTasks * kSlices;
static_assert(cfg::kSpareTasks >= kMaxShares, "every share may cut a task in two");
static_assert(kSlices <= kMaxShares, "every slice has a share");

// The tasks of one layer group in a step, ordered by slice, token and key. Those of share s of a slice are
// [share[s * kSlices + slice], share[(s + 1) * kSlices + slice]), those of token t [first[t], first[t + 1]) and `count`
// more for each slice before it.
struct AttentionTasks {
  int32_t count;              // of a slice
  int32_t shares;             // of a slice, for dp_attention; 0 in a step that goes the flashinfer route
  int32_t flashinfer_shares;  // for dp_attention_flashinfer, likewise
  int32_t first[cfg::kMaxStepTokens + 1];
  int32_t share[kMaxShares + kSlices];
  int32_t arrived[cfg::kMaxStepTokens * kSlices];  // tasks whose partial results are there; zero between layers
  AttentionTask task[kMaxAttentionTasks];
};

// Partial results, by task: the output over its keys alone, normalised, and the natural logarithm of the sum of
// exponentials, minus infinity if no key was seen. Whoever produces them, one merge combines them.
using PartialOut = float[kSliceHeads][cfg::kHeadDim];
using PartialLse = float[kSliceHeads];

}  // namespace dp
