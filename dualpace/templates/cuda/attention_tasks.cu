// The list builders: which keys of which token make a task, which tasks a share.
#include "common/team.hpp"
#include "cuda/attention.cuh"

namespace dp {

// What the host has to allocate: the tasks of all groups, and partial results of this many tasks, each of the heads of
// a slice; and how many slices the heads are.
extern "C" {
__constant__ int64_t dp_attention_tasks_bytes = sizeof(AttentionTasks[cfg::kGroups]);
__constant__ int64_t dp_attention_max_tasks = kMaxAttentionTasks;
__constant__ int64_t dp_attention_slice_heads = kSliceHeads;
__constant__ int64_t dp_attention_slices = kSlices;
}

namespace {

// FlashInfer's kernel takes the workqueue's list.
enum class Route : int32_t { split, workqueue, flashinfer };

// The keys [begin, end) that a token sees.
struct Keys {
  int begin;
  int end;

  __device__ Keys(const StepBuffers& step, int group, int token) {
    end = step.position[token] + 1;
    begin = cfg::kWindow[group] > 0 ? most(end - cfg::kWindow[group], 0) : 0;
  }
  // Ranges of `size` keys, from multiples of it on, that hold some of these, and the first of them.
  __device__ int ranges(int size) const { return (end + size - 1) / size - begin / size; }
  __device__ int first_range(int size) const { return begin / size; }
};

__device__ AttentionTask task_of(const StepBuffers& step, const Keys& keys, int pair, int tasks, int begin, int end) {
  const int token = pair / kSlices;
  return {token,
          step.row_slot[step.token_row[token]],
          pair % kSlices,
          tasks,
          most(begin, keys.begin),
          least(end, keys.end)};
}

// Splits of kSplitTokens keys, which make a row's result independent of its batch, unless the batch would need more
// tasks than there is room for; then the size is doubled until it does not. The tokens of a prefill chunk fill the GPU
// as they are and have one task each. Shares are equal numbers of tasks.
__device__ void split(CtaTeam& team, const StepBuffers& step, int group, int shares, AttentionTasks& tasks) {
  const int pairs = static_cast<int>(step.tokens) * kSlices;
  int size = cfg::kSplitTokens, count;
  const auto ranges = [&](int token, const Keys& keys) {
    const int row = step.token_row[token];
    return step.query_begin[row + 1] - step.query_begin[row] == 1 ? keys.ranges(size) : 1;
  };
  for (;; size *= 2) {
    team.each(pairs, [&](int pair) {
      const int token = pair / kSlices;
      tasks.first[pair] = ranges(token, Keys(step, group, token));
    });
    count = team.scan(tasks.first, pairs);
    if (count <= kMaxAttentionTasks) break;
  }
  team.each(pairs, [&](int pair) {
    const int token = pair / kSlices;
    const Keys keys(step, group, token);
    const int splits = ranges(token, keys);
    for (int i = 0; i < splits; ++i) {
      const int begin = (keys.first_range(size) + i) * size;
      tasks.task[tasks.first[pair] + i] =
          task_of(step, keys, pair, splits, begin, splits == 1 ? keys.end : begin + size);
    }
  });
  shares = least(shares, count);
  team.each(shares, [&](int share) { tasks.share[share] = static_cast<int>(int64_t{share} * count / shares); });
  if (team.leader()) {
    tasks.first[pairs] = tasks.share[shares] = tasks.count = count;
    tasks.shares = shares;
  }
}

// The keys of all slices of all tokens, one after the other in ranges of kTaskKeys, are cut into equal shares of whole
// ranges, whatever the rows' lengths.
__device__ void workqueue(CtaTeam& team, const StepBuffers& step, int group, int shares, AttentionTasks& tasks) {
  const int tokens = static_cast<int>(step.tokens), pairs = tokens * kSlices;
  int32_t* start = tasks.arrived;  // ranges before each token
  team.each(tokens, [&](int token) { start[token] = Keys(step, group, token).ranges(kTaskKeys) * kSlices; });
  const int total = team.scan(start, tokens);
  const int share_size = most((total + shares - 1) / shares, 1);
  // Ranges [begin, end) of a pair among all.
  struct Span {
    int begin, end;
    __device__ Span(const Keys& keys, int start, int slice) {
      const int ranges = keys.ranges(kTaskKeys);
      begin = start + slice * ranges;
      end = begin + ranges;
    }
  };
  const auto count_of = [&](const Span& span) { return (span.end - 1) / share_size - span.begin / share_size + 1; };
  team.each(pairs, [&](int pair) {
    const int token = pair / kSlices;
    const Span span(Keys(step, group, token), start[token], pair % kSlices);
    tasks.first[pair] = count_of(span);
  });
  const int count = team.scan(tasks.first, pairs);
  team.each(pairs, [&](int pair) {
    const int token = pair / kSlices;
    const Keys keys(step, group, token);
    const Span span(keys, start[token], pair % kSlices);
    const int shift = keys.first_range(kTaskKeys) - span.begin;
    int index = tasks.first[pair];
    for (int share = span.begin / share_size; share * share_size < span.end; ++share, ++index) {
      const int begin = most(share * share_size, span.begin), end = least((share + 1) * share_size, span.end);
      tasks.task[index] =
          task_of(step, keys, pair, count_of(span), (begin + shift) * kTaskKeys, (end + shift) * kTaskKeys);
      if (share * share_size >= span.begin) tasks.share[share] = index;
    }
  });
  if (team.leader()) {
    tasks.shares = (total + share_size - 1) / share_size;
    tasks.first[pairs] = tasks.share[tasks.shares] = tasks.count = count;
  }
}

}  // namespace

// Fills the tasks of every group from the step's positions, by the Route `route`, for up to `shares` CTAs. Grid:
// kGroups CTAs.
extern "C" __global__ void __launch_bounds__(CtaTeam::kThreads)
    dp_attention_tasks(const StepBuffers* step, int route, int shares, AttentionTasks* tasks_of_group) {
  __shared__ CtaTeam::Meeting meeting;
  CtaTeam team(meeting);
  const int group = blockIdx.x;
  AttentionTasks& tasks = tasks_of_group[group];
  shares = least(shares, kMaxShares);
  if (static_cast<Route>(route) == Route::split) {
    split(team, *step, group, shares, tasks);
  } else {
    workqueue(team, *step, group, shares, tasks);
  }
  team.sync();
  team.each(static_cast<int>(step->tokens) * kSlices, [&](int pair) { tasks.arrived[pair] = 0; });
}

}  // namespace dp
