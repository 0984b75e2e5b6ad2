// Grouped-query attention on paged KV: tasks to partial results with their LSE, and these to outputs.
#include "cuda/attention_fma.cuh"
#include "cuda/attention_mma.cuh"
#include "cuda/attention_prefetch.cuh"

namespace dp {

using Attention = std::conditional_t<kTensorCores, MmaAttention<Element>, FmaAttention<Element>>;

namespace {

constexpr int kMergeThreads = 256;
using MergeExchange = Exchange<kMergeThreads / 32>;

}  // namespace

// Dynamic shared memory of the kernels.
extern "C" {
__constant__ int64_t dp_attention_shared_bytes = Attention::kSharedBytes;
__constant__ int64_t dp_attention_merge_shared_bytes = sizeof(MergeExchange);
}

// Does every task of `group` over `pool`, its pool of one layer. `qkv` [tokens][kQkvColumns] has been through
// dp_kv_append. Writes `out` [tokens][kHeads][kHeadDim], or if that is null every task's partial result for
// dp_attention_merge. Grid: any number of CTAs; best as many as the list was made for. The list and the step are read
// before wait_dependency(): some kernel since dp_attention_tasks was launched without overlap.
extern "C" __global__ void __launch_bounds__(Attention::kThreads)
    dp_attention(const StepBuffers* step, int group, AttentionTasks* tasks_of_group, const Element* qkv,
                 const Element* pool, PartialOut* partial, PartialLse* lse, Element* out) {
  extern __shared__ __align__(16) unsigned char memory[];
  auto& shared = *reinterpret_cast<Attention::Shared*>(memory);
  AttentionTasks& tasks = tasks_of_group[group];
  const int32_t* tables = step->table[group][0];
  const int shares = tasks.shares * kSlices;
  launch_dependents();
  if (blockIdx.x < shares) prefetch_first(tasks.task[tasks.share[blockIdx.x]], tables, pool);
  wait_dependency();
  for (int share = blockIdx.x; share < shares; share += gridDim.x) {
    Attention::attend({tasks, partial, lse, out}, tasks.share[share], tasks.share[share + kSlices], tables, qkv, pool,
                      shared);
  }
}

// Writes `out` from the partial results of each token's tasks. A token none of whose keys was seen gets zeros; so
// do those that dp_prefill attends, which comes after this. Grid: any number of CTAs.
extern "C" __global__ void __launch_bounds__(kMergeThreads)
    dp_attention_merge(const StepBuffers* step, int group, AttentionTasks* tasks_of_group, PartialOut* partial,
                       PartialLse* lse, Element* out) {
  extern __shared__ __align__(16) unsigned char memory[];
  auto& exchange = *reinterpret_cast<MergeExchange*>(memory);
  AttentionTasks& tasks = tasks_of_group[group];
  const Results results = {tasks, partial, lse, out};
  for (unsigned pair = blockIdx.x; pair < step->tokens * kSlices; pair += gridDim.x) {
    const int token = static_cast<int>(pair) / kSlices, slice = static_cast<int>(pair) % kSlices;
    const int first = tasks.first[token], count = tasks.first[token + 1] - first;
    merge<kMergeThreads>(results, token, slice, slice * tasks.count + first, count, exchange);
    __syncthreads();
  }
}

}  // namespace dp
