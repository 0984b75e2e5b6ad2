// What kernels need beside their operands. One a lane: it is overwritten by every kernel that uses it.
#pragma once
#include "common/layout.hpp"
#include "common/portable.hpp"

namespace dp {

// Rows up to which the weight-streaming product is used, so the most that it keeps inputs for.
constexpr int kStreamedRows = 16;
constexpr int kMaxIn = most(most(cfg::kHidden, cfg::kIntermediate), cfg::kHeads* cfg::kHeadDim);

constexpr int kMaxSplits = (cfg::kMaxContext + cfg::kSplitTokens - 1) / cfg::kSplitTokens;

// Attention of consecutive tokens of one row over keys [begin, end), for each KV head. With several splits a work item
// writes a partial, else the output itself.
struct Task {
  int row;
  int first_token;
  int tokens;
  int position;  // of the first token
  int begin;
  int end;
  int split;
  int splits;
};

// The output of a split normalised by itself, and the logarithm of its softmax denominator (natural, of scaled scores):
// what a merge needs, whoever the producer is.
struct Partials {
  float out[cfg::kMaxBatch][kMaxSplits][cfg::kHeads][cfg::kHeadDim];
  float lse[cfg::kMaxBatch][kMaxSplits][cfg::kHeads];
};

struct alignas(64) Workspace {
  float inputs[kStreamedRows * kMaxIn];
  Task tasks[cfg::kMaxBatch * kMaxSplits + cfg::kMaxStepTokens];
  alignas(64) Partials partials;
};

}  // namespace dp
