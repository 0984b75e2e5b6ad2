// Key summaries of blocks that leave for the host pool, and what they promise a query.
//
// Of a block's keys in one KV head a summary has, by channel, the least and the greatest, each halfway to their mean.
// A head's score of the block is the sum over channels of the greater one of the query's products with the two, which
// is the first where the query is negative. So the scores of several heads add up to one product with the summary: of
// the sums of their queries' negative parts with the first half, and of the positive parts with the second.
#include "common/exact.hpp"
#include "common/recall.hpp"
#include "cuda/element.cuh"
#include "cuda/ptx.cuh"

namespace dp {
namespace {

constexpr int kThreads = 128;
constexpr int kHeadVectors = cfg::kHeadDim / kVector;
constexpr int kSummary = 2 * cfg::kHeadDim;

// Which heads choose the blocks of a layer, all of one KV head: those from `first` on.
struct Retrieval {
  int32_t first, heads;
};

// Summaries [kRecallLayers][kHostPages][2][kHeadDim].
__device__ int64_t summary_offset(int layer, int32_t host_page) {
  return (int64_t{layer} * kHostPages + host_page) * kSummary;
}

// Lists that have been summarised, and CTAs that are done with those of the launch.
struct Summarised {
  uint32_t ticket, arrived;
};

__device__ void summarise(const Element* key, Element* summary) {
  Values least_key, greatest, sum;
  load(key, sum);
#pragma unroll
  for (int c = 0; c < kVector; ++c) least_key[c] = greatest[c] = sum[c];
#pragma unroll 8
  for (int token = 1; token < cfg::kPageSize; ++token) {
    Values x;
    load(key + token * cfg::kHeadDim, x);
#pragma unroll
    for (int c = 0; c < kVector; ++c) {
      least_key[c] = fminf(least_key[c], x[c]);
      greatest[c] = fmaxf(greatest[c], x[c]);
      sum[c] += x[c];
    }
  }
#pragma unroll
  for (int c = 0; c < kVector; ++c) {
    const float mean = sum[c] / cfg::kPageSize;
    least_key[c] = (least_key[c] + mean) / 2;
    greatest[c] = (greatest[c] + mean) / 2;
  }
  store(least_key, summary);
  store(greatest, summary + cfg::kHeadDim);
}

// Summaries that a warp reads at a time, in runs side by side.
constexpr int run_lanes() {
  int lanes = 8;
  while (lanes < 2 * kHeadVectors && lanes < 32) lanes *= 2;
  return lanes;
}
constexpr int kSummaryLanes = run_lanes();
constexpr int kEach = (2 * kHeadVectors + kSummaryLanes - 1) / kSummaryLanes;  // vectors of a lane
constexpr int kRun = 8 / kEach > 0 ? 8 / kEach : 1;
constexpr int kChunk = 32 / kSummaryLanes * kRun;
static_assert(kChunk <= 32, "a lane has one of a chunk's pages and scores");

__device__ int lane_index() { return static_cast<int>(threadIdx.x) % 32; }

// Of the chunks that the candidates of all rows are cut into, one after the other, the so-manieth.
struct Chunk {
  int row, first, count;  // of the row's candidates; row < 0: there is none

  __device__ Chunk(const StepBuffers& step, const SlowRow* rows, int index) : row(kNone), first(0), count(0) {
    for (int begin = 0; begin < static_cast<int>(step.rows) && row == kNone; begin += 32) {
      const int mine = begin + lane_index();
      const bool any = mine < static_cast<int>(step.rows) && rows[step.row_slot[mine]].sparse != 0;
      const int n = any ? candidates(rows[step.row_slot[mine]].pages) : 0;
      const int chunks = n > 0 ? (n + kChunk - 1) / kChunk : 0;
      int through = chunks;
#pragma unroll
      for (int lanes = 1; lanes < 32; lanes *= 2) {
        const int lower = __shfl_up_sync(~0u, through, lanes);
        if (lane_index() >= lanes) through += lower;
      }
      const unsigned beyond = __ballot_sync(~0u, through > index);
      if (beyond != 0) {
        const int lane = __ffs(static_cast<int>(beyond)) - 1;
        row = begin + lane;
        first = (index - __shfl_sync(~0u, through - chunks, lane)) * kChunk;
        count = least(__shfl_sync(~0u, n, lane) - first, kChunk);
      } else {
        index -= __shfl_sync(~0u, through, 31);
      }
    }
  }
};

// The vectors of a chunk's summaries that are the lane's. Summaries are read once a step: they do not stay in L2.
struct Vectors {
  uint4 of[kRun][kEach];

  __device__ Vectors(const Chunk& chunk, const int32_t* host, const Element* summaries) {
    const int lane = lane_index();
    const int32_t page = host[cfg::kSinkBlocks + chunk.first + least(lane, chunk.count - 1)];
#pragma unroll
    for (int i = 0; i < kRun; ++i) {
      const int64_t from = int64_t{__shfl_sync(~0u, page, i * (32 / kSummaryLanes) + lane / kSummaryLanes)} * kSummary;
#pragma unroll
      for (int e = 0; e < kEach; ++e) {
        const int vector = lane % kSummaryLanes + e * kSummaryLanes;
        if (vector < 2 * kHeadVectors) {
          of[i][e] = __ldcs(reinterpret_cast<const uint4*>(summaries + from + vector * kVector));
        } else {
          of[i][e] = {};
        }
      }
    }
  }
};

// What the lane's vectors are multiplied by: the positive or the negative parts of the queries that choose.
struct Weights {
  Values of[kEach];

  __device__ Weights(const Element* qkv, int token, Retrieval heads) {
#pragma unroll
    for (int e = 0; e < kEach; ++e) {
      const int vector = lane_index() % kSummaryLanes + e * kSummaryLanes;
      const bool positive = vector >= kHeadVectors;
      const int channel = vector % kHeadVectors * kVector;
#pragma unroll
      for (float& weight : of[e]) weight = 0;
      for (int head = heads.first; head < heads.first + heads.heads; ++head) {
        Values query;
        load(qkv + int64_t{token} * kQkvColumns + head * cfg::kHeadDim + channel, query);
#pragma unroll
        for (int c = 0; c < kVector; ++c) of[e][c] += positive ? fmaxf(query[c], 0.0f) : fminf(query[c], 0.0f);
      }
    }
  }
};

}  // namespace

// What the host has to allocate for `done`, zeroed.
extern "C" {
__constant__ int64_t dp_summarised_bytes = sizeof(Summarised);
}

// Summarises the blocks of all lists that leave and are not summarised yet, up to that of queue->until: from `pools`,
// those of all layers in host memory, to `summaries` by host page. `retrieval` [kRecallLayers]. Grid: any number of
// CTAs.
extern "C" __global__ void __launch_bounds__(kThreads)
    dp_summarise(BlockQueue* queue, Summarised* done, const Retrieval* retrieval, const Element* pools,
                 Element* summaries) {
  launch_dependents();
  wait_dependency();
  const uint32_t until = queue->until;
  for (uint32_t ticket = done->ticket + 1; ticket != until + 1; ++ticket) {
    const Transfer* items = queue->items_of(ticket);
    const int vectors = queue->count_of(ticket) * kHeadVectors;
    for (int i = static_cast<int>(blockIdx.x * kThreads + threadIdx.x); i < vectors; i += gridDim.x * kThreads) {
      const auto [from, to] = items[i / kHeadVectors];
      const int layer = to % kRecallLayers, offset = i % kHeadVectors * kVector;
      const int kv_head = retrieval[layer].first / cfg::kGqaRatio;
      summarise(pools + key_offset(from, kv_head, 0) + offset,
                summaries + summary_offset(layer, to / kRecallLayers) + offset);
    }
  }
  __syncthreads();
  if (threadIdx.x != 0 || atomicAdd(&done->arrived, 1) + 1 != gridDim.x) return;
  *done = {until, 0};
}

// scores [kSlowRows][kPagesPerRow] of the pages that each row's token may choose from in `layer`, as whole numbers of
// the same order: by the queries in `qkv` [tokens][kQkvColumns], which have been through dp_kv_append, of the heads
// retrieval[layer]. Grid: any number of CTAs; best as many as the GPU holds.
extern "C" __global__ void __launch_bounds__(kThreads)
    dp_score(const StepBuffers* step, int layer, const SlowRow* rows, const Retrieval* retrieval, const Element* qkv,
             const Element* summaries, uint32_t* scores) {
  launch_dependents();
  summaries += summary_offset(layer, 0);
  const int warps = static_cast<int>(gridDim.x) * (kThreads / 32), lane = lane_index();
  bool waited = false;
  for (int index = static_cast<int>(blockIdx.x * (kThreads / 32) + threadIdx.x / 32);; index += warps) {
    // What is read up to the wait is older than the step's first layer.
    const Chunk chunk(*step, rows, index);
    if (chunk.row == kNone) break;
    const Vectors vectors(chunk, rows[step->row_slot[chunk.row]].host, summaries);
    if (!waited) wait_dependency();
    waited = true;
    const Weights weights(qkv, step->query_begin[chunk.row], retrieval[layer]);
    float mine = 0;
#pragma unroll
    for (int i = 0; i < kRun; ++i) {
      float score = 0;
#pragma unroll
      for (int e = 0; e < kEach; ++e) {
        Values x;
        widen(vectors.of[i][e], x);
#pragma unroll
        for (int c = 0; c < kVector; ++c) score += x[c] * weights.of[e][c];
      }
#pragma unroll
      for (int lanes = kSummaryLanes / 2; lanes > 0; lanes /= 2) score += __shfl_xor_sync(~0u, score, lanes);
      constexpr int kSide = 32 / kSummaryLanes;
      const float theirs = __shfl_sync(~0u, score, lane % kSide * kSummaryLanes);
      if (lane / kSide == i) mine = theirs;
    }
    if (lane < chunk.count) {
      scores[chunk.row * cfg::kPagesPerRow + chunk.first + lane] = ranked(mine);
    }
  }
  if (!waited) wait_dependency();
}

}  // namespace dp
