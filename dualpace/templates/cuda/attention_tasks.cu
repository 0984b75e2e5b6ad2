// The list builder of the split route.
#include "cuda/attention.cuh"

namespace dp {

extern "C" {
__constant__ uint64_t dp_attention_workspace_bytes = sizeof(AttentionWorkspace);  // what the host must allocate
}

namespace {

// The keys that a token sees, and whether it is the only token of its row: then they are split at multiples of the
// split size. The tokens of a prefill chunk fill the GPU as they are and have one task each.
struct Keys {
  int begin;
  int end;
  bool alone;

  __device__ Keys(const StepBuffers& step, int group, int token) {
    const int row = step.token_row[token];
    end = step.position[token] + 1;
    begin = cfg::kWindow[group] > 0 ? max(end - cfg::kWindow[group], 0) : 0;
    alone = step.query_begin[row + 1] - step.query_begin[row] == 1;
  }
  __device__ int tasks(int split) const { return alone ? (end + split - 1) / split - begin / split : 1; }
};

constexpr int kThreads = 256;

struct Scan {
  int before;  // sum over the threads before this one
  int total;
};

__device__ Scan scan(int value) {
  __shared__ int warp_total[kThreads / 32];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  int through = value;
  for (int lanes = 1; lanes < 32; lanes *= 2) {
    const int other = __shfl_up_sync(~0u, through, lanes);
    if (lane >= lanes) through += other;
  }
  if (lane == 31) warp_total[warp] = through;
  __syncthreads();
  Scan result{through - value, 0};
  for (int w = 0; w < kThreads / 32; ++w) {
    if (w < warp) result.before += warp_total[w];
    result.total += warp_total[w];
  }
  __syncthreads();
  return result;
}

}  // namespace

// Fills the tasks of every group from the step's positions. Splits are of kSplitTokens keys, which makes a row's result
// independent of its batch, unless the batch would need more tasks than there is room for; then splits are doubled
// until it does not. Grid: kGroups CTAs of kThreads.
extern "C" __global__ void __launch_bounds__(kThreads)
    dp_attention_tasks(const StepBuffers* step, AttentionWorkspace* workspace) {
  const int group = blockIdx.x;
  const int tokens = static_cast<int>(step->tokens);
  int split = cfg::kSplitTokens;
  for (;; split *= 2) {
    int count = 0;
    for (int token = threadIdx.x; token < tokens; token += kThreads) {
      count += Keys(*step, group, token).tasks(split);
    }
    if (scan(count).total <= kMaxAttentionTasks) break;
  }
  AttentionTasks& tasks = workspace->tasks[group];
  int first = 0;
  for (int chunk = 0; chunk < tokens; chunk += kThreads) {
    const int token = chunk + threadIdx.x;
    const int count = token < tokens ? Keys(*step, group, token).tasks(split) : 0;
    const auto [before, total] = scan(count);
    if (token < tokens) {
      const Keys keys(*step, group, token);
      tasks.first[token] = first + before;
      for (int i = 0; i < count; ++i) {
        const int begin = i == 0 ? keys.begin : (keys.begin / split + i) * split;
        const int end = i == count - 1 ? keys.end : (keys.begin / split + i + 1) * split;
        tasks.task[first + before + i] = {token, begin, end};
      }
    }
    first += total;
  }
  if (threadIdx.x == 0) tasks.first[tokens] = tasks.count = first;
}

}  // namespace dp
