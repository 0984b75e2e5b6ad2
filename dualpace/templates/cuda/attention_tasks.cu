// The list builders: which keys of which token make a task, which tasks a share.
#include "common/team.hpp"
#include "cuda/attention.cuh"
#include "cuda/kernel_costs.cuh"

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

__device__ SeenKeys seen_by(const StepBuffers& step, int group, int token) {
  const int end = step.position[token] + 1, row = step.token_row[token];
  return {cfg::kWindow[group] > 0 ? most(end - cfg::kWindow[group], 0) : 0, end,
          step.query_begin[row + 1] - step.query_begin[row] > 1};
}

__device__ AttentionTask task_of(const StepBuffers& step, const SeenKeys& keys, int pair, int tasks, int begin,
                                 int end) {
  const int token = pair / kSlices;
  return {token,
          step.row_slot[step.token_row[token]],
          pair % kSlices,
          tasks,
          most(begin, keys.begin),
          least(end, keys.end)};
}

// Splits of `size` keys, unless the batch would need more tasks than there is room for; then the size is doubled until
// it does not. Shares are equal numbers of tasks. Returns the size.
__device__ int split(CtaTeam& team, const StepBuffers& step, int group, int size, int shares, AttentionTasks& tasks) {
  const int pairs = static_cast<int>(step.tokens) * kSlices;
  int count;
  for (;; size *= 2) {
    team.each(pairs, [&](int pair) { tasks.first[pair] = seen_by(step, group, pair / kSlices).splits(size); });
    count = team.scan(tasks.first, pairs);
    if (count <= kMaxAttentionTasks) break;
  }
  team.each(pairs, [&](int pair) {
    const SeenKeys keys = seen_by(step, group, pair / kSlices);
    const int splits = keys.splits(size);
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
  return size;
}

// The keys of all slices of all tokens, one after the other in ranges of kTaskKeys, are cut into equal shares of whole
// ranges, whatever the rows' lengths.
__device__ void workqueue(CtaTeam& team, const StepBuffers& step, int group, int shares, AttentionTasks& tasks) {
  const int tokens = static_cast<int>(step.tokens), pairs = tokens * kSlices;
  int32_t* start = tasks.arrived;  // ranges before each token
  team.each(tokens, [&](int token) { start[token] = seen_by(step, group, token).ranges(kTaskKeys) * kSlices; });
  const int total = team.scan(start, tokens);
  const int share_size = most((total + shares - 1) / shares, 1);
  // Ranges [begin, end) of a pair among all.
  struct Span {
    int begin, end;
    __device__ Span(const SeenKeys& keys, int start, int slice) {
      const int ranges = keys.ranges(kTaskKeys);
      begin = start + slice * ranges;
      end = begin + ranges;
    }
  };
  const auto count_of = [&](const Span& span) { return (span.end - 1) / share_size - span.begin / share_size + 1; };
  team.each(pairs, [&](int pair) {
    const int token = pair / kSlices;
    const Span span(seen_by(step, group, token), start[token], pair % kSlices);
    tasks.first[pair] = count_of(span);
  });
  const int count = team.scan(tasks.first, pairs);
  team.each(pairs, [&](int pair) {
    const int token = pair / kSlices;
    const SeenKeys keys = seen_by(step, group, token);
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

// Partial results of the list: tasks that are not all of their slice.
__device__ int64_t partials_of(CtaTeam& team, const AttentionTasks& tasks, int pairs) {
  const uint64_t whole = team.reduce(
      pairs, [&](int pair) { return uint64_t{tasks.first[pair + 1] - tasks.first[pair] == 1 ? 1u : 0u}; }, Sum());
  return tasks.count - static_cast<int64_t>(whole);
}

}  // namespace

// Fills the tasks of every group and the step's `attention` from its positions. `route` is a Route; Route::kAuto takes
// the cheapest there is, split sizes among them. `split_tokens`: of the split route, if that is asked for.
// `own_ctas`, `flashinfer_ctas`: CTAs that the GPU holds at once, of dp_attention and of dp_attention_flashinfer, 0 if
// there is none; a list has no more shares than its kernel has CTAs. Grid: kGroups CTAs.
extern "C" __global__ void __launch_bounds__(CtaTeam::kThreads)
    dp_attention_tasks(StepBuffers* step, int route, int split_tokens, int own_ctas, int flashinfer_ctas,
                       AttentionTasks* tasks_of_group) {
  __shared__ CtaTeam::Meeting meeting;
  CtaTeam team(meeting);
  const int group = blockIdx.x, tokens = static_cast<int>(step->tokens), pairs = tokens * kSlices;
  AttentionTasks& tasks = tasks_of_group[group];
  const auto seen = [&](int token) { return seen_by(*step, group, token); };
  const RouteCtas ctas = {least(own_ctas, kMaxShares), least(flashinfer_ctas, kMaxShares)};
  const BatchKeys batch = batch_keys(team, tokens, kSlices, seen);
  RouteChoice choice = {static_cast<Route>(route), split_tokens, 0};
  if (choice.route == Route::kAuto) choice = cheapest_route(team, batch, ctas, kKernelCosts, seen);
  if (choice.route == Route::kSplit) {
    choice.split_tokens = split(team, *step, group, choice.split_tokens, ctas.own, tasks);
  } else {
    choice.split_tokens = 0;
    workqueue(team, *step, group, choice.route == Route::kFlashinfer ? ctas.flashinfer : ctas.own, tasks);
  }
  team.sync();
  team.each(pairs, [&](int pair) { tasks.arrived[pair] = 0; });
  const bool flashinfer = choice.route == Route::kFlashinfer;
  const int64_t partials = flashinfer ? tasks.count : partials_of(team, tasks, pairs);
  if (team.leader()) {
    tasks.flashinfer_shares = flashinfer ? tasks.shares : 0;
    if (flashinfer) tasks.shares = 0;
    constexpr uint64_t kKeyBytes = 2 * cfg::kHeadDim * cfg::kElementBytes;
    step->attention[group] = {static_cast<uint32_t>(choice.route),
                              static_cast<uint32_t>(choice.split_tokens),
                              static_cast<uint32_t>(tasks.count),
                              1,
                              static_cast<uint64_t>(batch.keys) * kKeyBytes,
                              static_cast<uint64_t>(partials) * 2 * (sizeof(PartialOut) + sizeof(PartialLse))};
  }
}

}  // namespace dp
