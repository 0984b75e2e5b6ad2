// Grouped-query attention on paged KV: partial results with their LSE, and their merge.
//
// A CTA works on one task and one KV head. A key is read by as many lanes as it has 16-byte vectors (a reader), all
// query heads of the group are scored against it while it is in registers, and its value is read beside it. Every
// reader keeps an online softmax in FP32 over its own keys; the readers of a CTA are combined in shared memory, the
// tasks of a token by dp_attention_merge.
#include <cmath>

#include "cuda/attention.cuh"

namespace dp {
namespace {

// A slice is the query heads that one warp scores, as many as registers hold. The slices of a larger group are warps of
// the same CTA, which work on the same keys at the same time, so that the group's KV comes from memory once.
constexpr int kMaxSliceHeads = 8;
constexpr int kSlices = (cfg::kGqaRatio + kMaxSliceHeads - 1) / kMaxSliceHeads;
constexpr int kSliceHeads = (cfg::kGqaRatio + kSlices - 1) / kSlices;
constexpr int kSliceThreads = 128;
constexpr int kThreads = kSlices * kSliceThreads;
static_assert(kThreads <= 1024, "this many query heads a KV head do not fit a CTA");

constexpr int kMergeThreads = 128;

constexpr int lanes_of(int vectors) {
  int lanes = 1;
  while (lanes < vectors && lanes < 32) lanes *= 2;
  return lanes;
}
constexpr int kHeadVectors = cfg::kHeadDim / kVector;
constexpr int kLanes = lanes_of(kHeadVectors);
constexpr int kLoads = (kHeadVectors + kLanes - 1) / kLanes;  // of each lane, for one key
constexpr int kReaders = kSliceThreads / kLanes;
constexpr int kUnroll = kSliceHeads > 4 ? 2 : 4;  // keys of a reader in flight

// The last slice may have fewer heads than the others; it works on zeros for what is missing and does not store it.
__device__ bool has_head(int slice, int h) {
  return kSlices * kSliceHeads == cfg::kGqaRatio || slice * kSliceHeads + h < cfg::kGqaRatio;
}

// Lanes past a head's last vector hold zeros: they add nothing to a score and their output is not stored.
__device__ bool holds(int lane, int load) {
  return kLoads * kLanes == kHeadVectors || lane + load * kLanes < kHeadVectors;
}

__device__ void load_head(const Element* head, int lane, bool valid, uint4 (&out)[kLoads]) {
#pragma unroll
  for (int j = 0; j < kLoads; ++j) {
    out[j] = valid && holds(lane, j) ? load_vector(head + (lane + j * kLanes) * kVector) : uint4{};
  }
}

// Of a thread in its CTA.
struct Place {
  int slice, reader, lane;
};

// What a reader has seen of its keys, for the heads of a slice: largest score, sum of exponentials relative to it, and
// the lane's share of the sum of values so weighted. Scores are in units of log2, so that exp2 serves.
struct Softmax {
  float max[kSliceHeads];
  float sum[kSliceHeads];
  float value[kSliceHeads][kLoads][kVector];
};

// Adds up to kUnroll keys; those past the end of the task score minus infinity, the first of them is valid.
__device__ void add(Softmax& softmax, float (&score)[kUnroll][kSliceHeads], const uint4 (&values)[kUnroll][kLoads]) {
#pragma unroll
  for (int h = 0; h < kSliceHeads; ++h) {
    float largest = softmax.max[h];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) largest = fmaxf(largest, score[u][h]);
    const float correction = exp2f(softmax.max[h] - largest);
    softmax.max[h] = largest;
    softmax.sum[h] *= correction;
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) softmax.sum[h] += score[u][h] = exp2f(score[u][h] - largest);
#pragma unroll
    for (int j = 0; j < kLoads; ++j) {
#pragma unroll
      for (int i = 0; i < kVector; ++i) softmax.value[h][j][i] *= correction;
    }
  }
#pragma unroll
  for (int u = 0; u < kUnroll; ++u) {
#pragma unroll
    for (int j = 0; j < kLoads; ++j) {
      float value[kVector];
      widen(values[u][j], value);
#pragma unroll
      for (int h = 0; h < kSliceHeads; ++h) {
#pragma unroll
        for (int i = 0; i < kVector; ++i) softmax.value[h][j][i] += score[u][h] * value[i];
      }
    }
  }
}

// Attends the slice's heads at `query` to the reader's share of keys [begin, end) of one KV head.
__device__ void attend(const Element* query, const Element* pool, const int32_t* table, int kv_head, int begin, int end,
                       Place place, Softmax& softmax) {
  const auto [slice, reader, lane] = place;
  constexpr float kScale = cfg::kAttentionScale * 1.4426950408889634f;  // log2(e)
  float q[kSliceHeads][kLoads][kVector];
#pragma unroll
  for (int h = 0; h < kSliceHeads; ++h) {
    uint4 raw[kLoads];
    load_head(query + h * cfg::kHeadDim, lane, has_head(slice, h), raw);
    softmax.max[h] = -INFINITY;
    softmax.sum[h] = 0;
#pragma unroll
    for (int j = 0; j < kLoads; ++j) {
      widen(raw[j], q[h][j]);
#pragma unroll
      for (int i = 0; i < kVector; ++i) {
        q[h][j][i] *= kScale;
        softmax.value[h][j][i] = 0;
      }
    }
  }
  // The pages of the next keys are looked up while the present ones are on their way.
  int page[kUnroll];
  const auto look_up = [&](int first) {
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const int key = first + u * kReaders + reader;
      page[u] = key < end ? table[key / cfg::kPageSize] : 0;
    }
  };
  look_up(begin);
  for (int first = begin; first < end; first += kUnroll * kReaders) {
    uint4 keys[kUnroll][kLoads], values[kUnroll][kLoads];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const int key = first + u * kReaders + reader;
      const Element* head = pool + key_offset(page[u], kv_head, key % cfg::kPageSize);
      load_head(head, lane, key < end, keys[u]);
      load_head(head + kValueOffset, lane, key < end, values[u]);
    }
    look_up(first + kUnroll * kReaders);
    float score[kUnroll][kSliceHeads] = {};
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
#pragma unroll
      for (int j = 0; j < kLoads; ++j) {
        float key[kVector];
        widen(keys[u][j], key);
#pragma unroll
        for (int h = 0; h < kSliceHeads; ++h) {
#pragma unroll
          for (int i = 0; i < kVector; ++i) score[u][h] += q[h][j][i] * key[i];
        }
      }
      const bool valid = first + u * kReaders + reader < end;
#pragma unroll
      for (int h = 0; h < kSliceHeads; ++h) {
#pragma unroll
        for (int lanes = kLanes / 2; lanes > 0; lanes /= 2) score[u][h] += __shfl_xor_sync(~0u, score[u][h], lanes);
        if (!valid) score[u][h] = -INFINITY;
      }
    }
    if (first + reader < end) add(softmax, score, values);
  }
}

// What the readers of a slice hand to each other of one head.
struct Exchange {
  float max[kReaders];
  float sum[kReaders];
  alignas(16) float value[kReaders][kHeadVectors][kVector];
};

// Combines the readers' softmaxes of each head into a partial result.
__device__ void combine(const Softmax& softmax, Place place, Exchange& exchange, float (*partial)[cfg::kHeadDim],
                        float* lse) {
  const auto [slice, reader, lane] = place;
#pragma unroll
  for (int h = 0; h < kSliceHeads; ++h) {
    exchange.max[reader] = softmax.max[h];
    exchange.sum[reader] = softmax.sum[h];
#pragma unroll
    for (int j = 0; j < kLoads; ++j) {
#pragma unroll
      for (int i = 0; i < kVector; ++i) {
        if (holds(lane, j)) exchange.value[reader][lane + j * kLanes][i] = softmax.value[h][j][i];
      }
    }
    __syncthreads();
    float max = -INFINITY;
    for (int r = 0; r < kReaders; ++r) max = fmaxf(max, exchange.max[r]);
    float sum = 0;
    for (int r = 0; r < kReaders; ++r) sum += exchange.sum[r] * exp2f(exchange.max[r] - max);
    if (has_head(slice, h)) {
      const int thread = threadIdx.x % kSliceThreads;
      for (int i = thread; i < cfg::kHeadDim; i += kSliceThreads) {
        float value = 0;
        for (int r = 0; r < kReaders; ++r) {
          value += exchange.value[r][i / kVector][i % kVector] * exp2f(exchange.max[r] - max);
        }
        partial[h][i] = value / sum;
      }
      if (thread == 0) lse[h] = (max + log2f(sum)) * 0.6931471805599453f;  // log(2)
    }
    __syncthreads();
  }
}

}  // namespace

// Attends every task of `group` over `pool`, its pool of one layer, and leaves a partial result for each. `qkv`
// [tokens][kQkvColumns] has been through dp_kv_append. Grid: (any number, kKvHeads) CTAs of kThreads.
extern "C" __global__ void __launch_bounds__(kThreads)
    dp_attention(const StepBuffers* step, int group, const AttentionTasks* tasks_of_group, const Element* qkv,
                 const Element* pool, PartialOut* partial, PartialLse* lse) {
  __shared__ Exchange exchange[kSlices];
  const int thread = threadIdx.x % kSliceThreads;
  const Place place = {static_cast<int>(threadIdx.x) / kSliceThreads, thread / kLanes, thread % kLanes};
  const int kv_head = blockIdx.y;
  const int first_head = kv_head * cfg::kGqaRatio + place.slice * kSliceHeads;
  const AttentionTasks& tasks = tasks_of_group[group];
  for (int i = blockIdx.x; i < tasks.count; i += gridDim.x) {
    const auto [token, begin, end] = tasks.task[i];
    const Element* query = qkv + int64_t{token} * kQkvColumns + first_head * cfg::kHeadDim;
    const int32_t* table = step->table[group][step->row_slot[step->token_row[token]]];
    Softmax softmax;
    attend(query, pool, table, kv_head, begin, end, place, softmax);
    combine(softmax, place, exchange[place.slice], partial[i] + first_head, lse[i] + first_head);
  }
}

// Writes `out` [tokens][kHeads][kHeadDim] from the partial results of each token's tasks. A token none of whose keys
// was seen gets zeros. Grid: (any number, kHeads) CTAs of kMergeThreads.
extern "C" __global__ void __launch_bounds__(kMergeThreads)
    dp_attention_merge(const StepBuffers* step, int group, const AttentionTasks* tasks_of_group,
                       const PartialOut* partial, const PartialLse* lse, Element* out) {
  const AttentionTasks& tasks = tasks_of_group[group];
  const int head = blockIdx.y;
  for (unsigned token = blockIdx.x; token < step->tokens; token += gridDim.x) {
    const int begin = tasks.first[token], end = tasks.first[token + 1];
    float max = -INFINITY;
    for (int i = begin; i < end; ++i) max = fmaxf(max, lse[i][head]);
    for (int d = threadIdx.x; d < cfg::kHeadDim; d += kMergeThreads) {
      float sum = 0, value = 0;
      for (int i = begin; i < end; ++i) {
        if (lse[i][head] == -INFINITY) continue;
        const float weight = expf(lse[i][head] - max);
        sum += weight;
        value += weight * partial[i][head][d];
      }
      out[(int64_t{token} * cfg::kHeads + head) * cfg::kHeadDim + d] = narrow(sum > 0 ? value / sum : 0.0f);
    }
  }
}

}  // namespace dp
