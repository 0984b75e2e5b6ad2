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

// Tokens of chunks see nothing here where dp_prefill attends them.
__device__ SeenKeys seen_by(const StepBuffers& step, int group, int token) {
  const int end = step.position[token] + 1, row = step.token_row[token];
  const bool of_chunk = step.query_begin[row + 1] - step.query_begin[row] > 1;
  if (of_chunk && cfg::kPrefill != Prefill::tokens) return {0, 0, false};
  return {cfg::kWindow[group] > 0 ? most(end - cfg::kWindow[group], 0) : 0, end, of_chunk};
}

// The keys of all tokens are laid end to end in ranges. A task is what one token has of a piece, which is one range for
// splits; for workqueues there is an equal piece for each share. Every slice is cut alike, so that CTAs which read the
// same pages do so at about the same time. Splits are of `split_tokens` keys, unless the batch would need more tasks
// than there is room for; then the size is doubled until it does not. Returns the size, 0 for workqueues.
__device__ int list(CtaTeam& team, const StepBuffers& step, int group, int split_tokens, int shares,
                    AttentionTasks& tasks) {
  const int tokens = static_cast<int>(step.tokens);
  const bool splits = split_tokens > 0;
  int32_t *start = tasks.arrived, *first = tasks.first;  // ranges, and tasks of a slice, before each token
  int size = splits ? split_tokens : kTaskKeys, ranges;
  // Keys of a range of a token, and its ranges.
  const auto size_of = [&](const SeenKeys& keys) { return splits && keys.of_chunk ? cfg::kMaxContext : size; };
  const auto ranges_of = [&](const SeenKeys& keys) { return keys.ranges(size_of(keys)); };
  for (;; size *= 2) {
    team.each(tokens, [&](int token) { start[token] = ranges_of(seen_by(step, group, token)); });
    ranges = team.scan(start, tokens);
    if (!splits || ranges <= kMaxSliceTasks) break;
  }
  shares = most(shares / kSlices, 1);
  const int piece_ranges = splits ? 1 : most((ranges + shares - 1) / shares, 1);
  const int pieces = (ranges + piece_ranges - 1) / piece_ranges;
  shares = least(shares, pieces);
  team.each(tokens, [&](int token) {
    const int end = start[token] + ranges_of(seen_by(step, group, token));
    first[token] = end > start[token] ? (end - 1) / piece_ranges - start[token] / piece_ranges + 1 : 0;
  });
  const int count = team.scan(first, tokens);
  if (team.leader()) {
    first[tokens] = tasks.count = count;
    tasks.shares = shares;
  }
  team.sync();
  team.each(tokens * kSlices, [&](int pair) {
    const int token = pair / kSlices, slice = pair % kSlices;
    const SeenKeys keys = seen_by(step, group, token);
    const int token_size = size_of(keys), begin = start[token], end = begin + ranges_of(keys);
    const int shift = keys.first_range(token_size) - begin;
    int index = slice * count + first[token];
    for (int piece = begin / piece_ranges, from = begin; from < end; ++piece, ++index) {
      const int to = least((piece + 1) * piece_ranges, end);
      tasks.task[index] = {token,
                           step.row_slot[step.token_row[token]],
                           slice,
                           slice * count + first[token],
                           first[token + 1] - first[token],
                           most((from + shift) * token_size, keys.begin),
                           least((to + shift) * token_size, keys.end)};
      // A share begins with piece share * pieces / shares.
      const int share = (piece * shares + pieces - 1) / pieces;
      if (from == piece * piece_ranges && share * pieces / shares == piece) {
        tasks.share[share * kSlices + slice] = index;
      }
      from = to;
    }
  });
  team.each(kSlices, [&](int slice) { tasks.share[shares * kSlices + slice] = (slice + 1) * count; });
  return splits ? size : 0;
}

// Partial results of the list: tasks that are not all of their slice.
__device__ int64_t partials_of(CtaTeam& team, const AttentionTasks& tasks, int tokens) {
  const uint64_t whole = team.reduce(
      tokens, [&](int token) { return uint64_t{tasks.first[token + 1] - tasks.first[token] == 1 ? 1u : 0u}; }, Sum());
  return (tasks.count - static_cast<int64_t>(whole)) * kSlices;
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
  const int group = blockIdx.x, tokens = static_cast<int>(step->tokens);
  AttentionTasks& tasks = tasks_of_group[group];
  const auto seen = [&](int token) { return seen_by(*step, group, token); };
  const RouteCtas ctas = {least(own_ctas, kMaxShares), least(flashinfer_ctas, kMaxShares)};
  BatchKeys batch = batch_keys(team, tokens, kSlices, seen);
  if (step->kind == static_cast<uint32_t>(StepKind::kMixed)) {
    batch.seeing =
        static_cast<int>(team.reduce(tokens, [&](int t) { return uint64_t{seen(t).end > 0 ? 1u : 0u}; }, Sum()));
  }
  RouteChoice choice = {static_cast<Route>(route), split_tokens, 0};
  if (choice.route == Route::kAuto) choice = cheapest_route(team, batch, ctas, kKernelCosts, seen);
  const bool flashinfer = choice.route == Route::kFlashinfer;
  choice.split_tokens = list(team, *step, group, choice.route == Route::kSplit ? choice.split_tokens : 0,
                             flashinfer ? ctas.flashinfer : ctas.own, tasks);
  team.sync();
  team.each(tokens * kSlices, [&](int pair) { tasks.arrived[pair] = 0; });
  const int64_t count = int64_t{tasks.count} * kSlices;
  const int64_t partials = partials_of(team, tasks, tokens);
  if (team.leader()) {
    tasks.flashinfer_shares = flashinfer ? tasks.shares : 0;
    if (flashinfer) tasks.shares = 0;
    constexpr uint64_t kKeyBytes = 2 * cfg::kHeadDim * cfg::kElementBytes;
    step->attention[group] = {static_cast<uint32_t>(choice.route),
                              static_cast<uint32_t>(choice.split_tokens),
                              static_cast<uint32_t>(count),
                              1,
                              static_cast<uint64_t>(batch.keys) * kKeyBytes,
                              static_cast<uint64_t>(partials) * 2 * (sizeof(PartialOut) + sizeof(PartialLse))};
  }
}

}  // namespace dp
