// The list builder of the split route.
#include "common/team.hpp"
#include "cuda/attention.cuh"

namespace dp {

// What the host has to allocate: the tasks of all groups, and room for this many partial results.
extern "C" {
__constant__ int64_t dp_attention_tasks_bytes = sizeof(AttentionTasks[cfg::kGroups]);
__constant__ int64_t dp_attention_max_tasks = kMaxAttentionTasks;
}

namespace {

// The keys that a token sees. If it is the only token of its row they are split at multiples of the split size; the
// tokens of a prefill chunk fill the GPU as they are and have one task each.
struct Keys {
  int begin;
  int end;
  bool split;

  __device__ Keys(const StepBuffers& step, int group, int token) {
    const int row = step.token_row[token];
    end = step.position[token] + 1;
    begin = cfg::kWindow[group] > 0 ? most(end - cfg::kWindow[group], 0) : 0;
    split = step.query_begin[row + 1] - step.query_begin[row] == 1;
  }
  __device__ int tasks(int size) const { return split ? (end + size - 1) / size - begin / size : 1; }
};

}  // namespace

// Fills the tasks of every group from the step's positions. Splits are of kSplitTokens keys, which makes a row's result
// independent of its batch, unless the batch would need more tasks than there is room for; then the size is doubled
// until it does not. Grid: kGroups CTAs.
extern "C" __global__ void __launch_bounds__(CtaTeam::kThreads)
    dp_attention_tasks(const StepBuffers* step, AttentionTasks* tasks_of_group) {
  __shared__ CtaTeam::Meeting meeting;
  CtaTeam team(meeting);
  const int group = blockIdx.x;
  const int tokens = static_cast<int>(step->tokens);
  AttentionTasks& tasks = tasks_of_group[group];
  int size = cfg::kSplitTokens, count;
  for (;; size *= 2) {
    team.each(tokens, [&](int token) { tasks.first[token] = Keys(*step, group, token).tasks(size); });
    count = team.scan(tasks.first, tokens);
    if (count <= kMaxAttentionTasks) break;
  }
  team.each(tokens, [&](int token) {
    const Keys keys(*step, group, token);
    AttentionTask* task = tasks.task + tasks.first[token];
    const int splits = keys.tasks(size), first_split = keys.begin / size;
    for (int i = 0; i < splits; ++i) {
      const int begin = i == 0 ? keys.begin : (first_split + i) * size;
      const int end = i == splits - 1 ? keys.end : (first_split + i + 1) * size;
      task[i] = {token, begin, end};
    }
  });
  if (team.leader()) tasks.first[tokens] = tasks.count = count;
}

}  // namespace dp
