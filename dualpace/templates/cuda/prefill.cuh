// Attention of prompt chunks: rows of the step with more than one query token. What a task is, and what a warp does
// with its scores and its results, whichever instructions multiply.
//
// The queries of a chunk and the heads of a group that share a KV head are packed: packed row p is head
// p % kGqaRatio of query p / kGqaRatio, so that each key is read once for all of them and a short chunk fills tiles.
#pragma once
#include "common/portable.hpp"
#include "cuda/attention_mma.cuh"

namespace dp {

constexpr bool kWgmmaPrefill = cfg::kPrefill == Prefill::wgmma;

// A task is a tile of packed rows over keys that are read in tiles.
constexpr int kTileRows = kWgmmaPrefill || cfg::kHeadDim <= 128 ? 128 : 64;
constexpr int kTileKeys = (kWgmmaPrefill ? 128 : 64) / (cfg::kHeadDim <= 128 ? 1 : 2);
constexpr int kRowWarps = kTileRows / 16;

// Shares of the list, a CTA each: at least as many as any GPU runs at once.
constexpr int kMaxPrefillShares = 256;
constexpr int kMaxPrefillTiles = cfg::kMaxStepTokens * cfg::kGqaRatio / kTileRows + cfg::kMaxBatch;
constexpr int kMaxPrefillTasks = kMaxPrefillTiles * cfg::kKvHeads + kMaxPrefillShares;

// A tile of packed rows of one KV head, or a piece of one: its keys [begin, end).
struct PrefillTask {
  int32_t row_slot;
  int32_t token;    // of the step, the first of the chunk
  int32_t queries;  // of the chunk
  int32_t history;  // keys before the chunk
  int32_t kv_head;
  int32_t packed;  // first row of the tile
  int32_t begin;
  int32_t end;
  int32_t pair;  // counts its pieces
  int32_t pieces;
  int32_t piece;
  int32_t slot;  // of the partial result of the first piece
};

// The tasks of one layer group in a step: whole tiles, one a share in each of `rounds`, then those of share s in
// [share[s], share[s + 1]).
struct PrefillTasks {
  int32_t count;
  int32_t shares;
  int32_t rounds;
  int32_t share[kMaxPrefillShares + 1];
  int32_t row[kMaxPrefillTiles];        // of each tile
  int32_t start[kMaxPrefillTiles + 1];  // where its costs begin
  int32_t first[kMaxPrefillTiles * cfg::kKvHeads];
  int32_t slot[kMaxPrefillTiles * cfg::kKvHeads];
  int32_t arrived[kMaxPrefillTiles * cfg::kKvHeads][kRowWarps];  // pieces that are there; zero between layers
  PrefillTask task[kMaxPrefillTasks];
};

// The pair that a share has in a round: first come, last served in the next, so that long tiles are followed by short.
inline __device__ int prefill_pair(int round, int share, int shares) {
  return round * shares + (round % 2 == 0 ? share : shares - 1 - share);
}

// Calls act(task) for the tasks of a share.
template <class Act>
__device__ void each_task(const PrefillTasks& tasks, int share, Act act) {
  const int rounds = tasks.rounds, first = tasks.share[share];
  const int count = rounds + tasks.share[share + 1] - first;
  for (int i = 0; i < count; ++i) {
    const PrefillTask task = tasks.task[i < rounds ? prefill_pair(i, share, tasks.shares) : first + i - rounds];
    act(task);
  }
}

// What a piece has seen, as the lanes hold it: largest score and sum of their two rows, then their shares of values.
struct PrefillPartial {
  float4 part[kRowWarps][1 + cfg::kHeadDim / 8][32];
};

constexpr int kRowVectors = cfg::kHeadDim / kVector;

inline __device__ void copy_shared(uint32_t to, const void* from, bool valid) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(valid ? 16 : 0)
               : "memory");
}

// A warp's rows of a tile, kHeadDim elements each, to shared memory in the background: lane l has the number of row l
// at `base`, or -1 for zeros. `place(row, vector)` is where 16 bytes go. Eight lanes copy a row where its vectors
// allow.
template <int kRows, class T, class Place>
__device__ void copy_rows(const T* base, int source, Place place) {
  const int lane = threadIdx.x % 32;
  constexpr int kLanes = kRowVectors % 8 == 0 ? 8 : kRowVectors;
  constexpr int kPieces = kRows * kLanes;
#pragma unroll 2  // more of them would not fit a producer's registers
  for (int i = 0; i < (kPieces + 31) / 32; ++i) {
    const int row = (i * 32 + lane) / kLanes, column = (i * 32 + lane) % kLanes;
    const int from = __shfl_sync(~0u, source, row % 32);
    const T* vectors = base + int64_t{most(from, 0)} * cfg::kHeadDim + column * kVector;
#pragma unroll
    for (int v = 0; v < kRowVectors; v += kLanes) {
      if (kPieces % 32 == 0 || row < kRows) copy_shared(place(row, column + v), vectors + v * kVector, from >= 0);
    }
  }
}

// Rows of the pools, and of the query buffer, are counted in 32 bits.
constexpr bool rows_fit() {
  for (const int pages : cfg::kPages) {
    if (int64_t{pages} * 2 * cfg::kKvHeads * cfg::kPageSize > INT32_MAX) return false;
  }
  return true;
}
static_assert(rows_fit());

// Row of the query buffer that holds a packed row of the task's tile, -1 past the chunk.
inline __device__ int query_row(const PrefillTask& task, int row) {
  const int packed = task.packed + row;
  const int query = packed / cfg::kGqaRatio;
  return query < task.queries ? (task.token + query) * (cfg::kHeads + 2 * cfg::kKvHeads) +
                                    task.kv_head * cfg::kGqaRatio + packed % cfg::kGqaRatio
                              : -1;
}

// Row of the pool that holds a key, -1 if the task does not see it; values lie kValueOffset further on.
inline __device__ int key_row(const PrefillTask& task, const int32_t* table, int key) {
  if (key < task.begin || key >= task.end) return -1;
  return (table[key / cfg::kPageSize] * 2 * cfg::kKvHeads + task.kv_head) * cfg::kPageSize + key % cfg::kPageSize;
}

// The online softmax of a warp's 16 packed rows. A lane has rows lane / 4 and lane / 4 + 8, and of every eight columns
// the two from lane % 4 * 2 on: the layout of products of mma and wgmma.
template <class T>
struct PrefillRows {
  // Scores are in units of log2 times this: a cap is applied to them one by one, else one product does both.
  static constexpr float kScale = cfg::kAttentionSoftcap > 0 ? 1.0f : cfg::kAttentionScale* kLog2E;
  static constexpr int kTiles = cfg::kHeadDim / 8;

  float max[2] = {-INFINITY, -INFINITY};
  float sum[2] = {};  // the lane's share
  float value[kTiles][4] = {};
  int begin[2];  // keys that the rows see
  int end[2];
  int whole_begin;  // keys that all rows of the warp see
  int whole_end;

  __device__ PrefillRows(const PrefillTask& task, int warp, int window) {
    const int lane = threadIdx.x % 32;
    const auto end_of = [&](int row) {
      return task.history + 1 + least((task.packed + warp * 16 + row) / cfg::kGqaRatio, task.queries - 1);
    };
    const auto begin_of = [&](int row) { return window > 0 ? end_of(row) - window : 0; };
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      end[h] = end_of(lane / 4 + 8 * h);
      begin[h] = begin_of(lane / 4 + 8 * h);
    }
    whole_begin = begin_of(15);
    whole_end = end_of(0);
  }

  // Scores of keys from `first` on to weights; `correction` is what earlier values are to be multiplied with.
  template <int kKeyTiles>
  __device__ void weigh(float (&score)[kKeyTiles][4], int first, float (&correction)[2]) {
    if constexpr (cfg::kAttentionSoftcap > 0) {
#pragma unroll
      for (int n = 0; n < kKeyTiles; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) score[n][i] = soft_capped(score[n][i] * (cfg::kAttentionScale * kLog2E));
      }
    }
    if (first < whole_begin || first + kKeyTiles * 8 > whole_end) {
      const int column = first + static_cast<int>(threadIdx.x) % 4 * 2;
#pragma unroll
      for (int n = 0; n < kKeyTiles; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int key = column + n * 8 + i % 2;
          if (key < begin[i / 2] || key >= end[i / 2]) score[n][i] = -INFINITY;
        }
      }
    }
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float largest = fmaxf(score[0][2 * h], score[0][2 * h + 1]);
#pragma unroll
      for (int n = 1; n < kKeyTiles; ++n) largest = fmaxf(largest, fmaxf(score[n][2 * h], score[n][2 * h + 1]));
      largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, 1));
      largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, 2));
      largest = fmaxf(largest, max[h]);
      const float base = largest == -INFINITY ? 0.0f : largest * kScale;
      correction[h] = exp2_fast(max[h] * kScale - base);
      max[h] = largest;
      float total = 0;
#pragma unroll
      for (int n = 0; n < kKeyTiles; ++n) {
#pragma unroll
        for (int i = 2 * h; i < 2 * h + 2; ++i) total += score[n][i] = exp2_fast(fmaf(score[n][i], kScale, -base));
      }
      sum[h] = fmaf(sum[h], correction[h], total);
    }
  }

  __device__ void rescale(const float (&correction)[2]) {
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) value[n][i] *= correction[i / 2];
    }
  }

  // Weights in the element type, as the left operand of a product: tiles of 16 keys.
  template <int kKeyTiles>
  static __device__ void narrow_weights(const float (&score)[kKeyTiles][4], uint32_t (&weights)[kKeyTiles / 2][4]) {
#pragma unroll
    for (int k = 0; k < kKeyTiles / 2; ++k) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        weights[k][i] = pack<T>(score[2 * k + i / 2][i % 2 * 2], score[2 * k + i / 2][i % 2 * 2 + 1]);
      }
    }
  }

  // Writes the rows, or leaves what was seen for the warp that brings the last piece of the tile.
  __device__ void finish(const PrefillTask& task, int warp, PrefillTasks& tasks, PrefillPartial* partial, T* out) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      sum[h] += __shfl_xor_sync(~0u, sum[h], 1);
      sum[h] += __shfl_xor_sync(~0u, sum[h], 2);
      max[h] *= kScale;
    }
    if (task.pieces > 1) {
      leave(partial[task.slot + task.piece].part[warp]);
      if (!is_last(task, tasks.arrived[task.pair][warp])) return;
      merge(task, warp, partial);
    }
    store(task, warp, out);
  }

 private:
  __device__ void leave(float4 (*part)[32]) const {
    const int lane = threadIdx.x % 32;
    part[0][lane] = {max[0], max[1], sum[0], sum[1]};
#pragma unroll
    for (int n = 0; n < kTiles; ++n) part[1 + n][lane] = {value[n][0], value[n][1], value[n][2], value[n][3]};
  }

  static __device__ bool is_last(const PrefillTask& task, int32_t& arrived) {
    __threadfence();
    __syncwarp();
    int before = 0;
    if (threadIdx.x % 32 == 0) before = atomicAdd(&arrived, 1);
    const bool last = __shfl_sync(~0u, before, 0) == task.pieces - 1;
    if (last) {
      if (threadIdx.x % 32 == 0) arrived = 0;
      __threadfence();
    }
    return last;
  }

  // In the order of the pieces, whoever was last.
  __device__ void merge(const PrefillTask& task, int warp, const PrefillPartial* partial) {
    const int lane = threadIdx.x % 32;
    const auto part = [&](int piece) { return partial[task.slot + piece].part[warp]; };
    float largest[2] = {-INFINITY, -INFINITY};
    for (int piece = 0; piece < task.pieces; ++piece) {
      const float4 seen = __ldcg(&part(piece)[0][lane]);
      largest[0] = fmaxf(largest[0], seen.x);
      largest[1] = fmaxf(largest[1], seen.y);
    }
    sum[0] = sum[1] = 0;
    const float none[2] = {0, 0};
    rescale(none);
    for (int piece = 0; piece < task.pieces; ++piece) {
      const float4 seen = __ldcg(&part(piece)[0][lane]);
      const float weight[2] = {weight_of(seen.x, largest[0]), weight_of(seen.y, largest[1])};
      sum[0] += weight[0] * seen.z;
      sum[1] += weight[1] * seen.w;
#pragma unroll
      for (int n = 0; n < kTiles; ++n) {
        const float4 more = __ldcg(&part(piece)[1 + n][lane]);
        value[n][0] += weight[0] * more.x;
        value[n][1] += weight[0] * more.y;
        value[n][2] += weight[1] * more.z;
        value[n][3] += weight[1] * more.w;
      }
    }
  }

  // Neighbouring lanes exchange halves of two column tiles, so that each writes 8 bytes and a row 32 at a time.
  __device__ void store(const PrefillTask& task, int warp, T* out) const {
    const int lane = threadIdx.x % 32;
    const bool odd = lane % 2 == 1;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int packed = task.packed + warp * 16 + lane / 4 + 8 * h;
      const int query = packed / cfg::kGqaRatio;
      const int head = task.kv_head * cfg::kGqaRatio + packed % cfg::kGqaRatio;
      T* row = out + (int64_t{task.token + query} * cfg::kHeads + head) * cfg::kHeadDim;
      const float scale = 1 / sum[h];
#pragma unroll
      for (int n = 0; n < kTiles; n += 2) {
        const uint32_t mine[2] = {pack<T>(value[n][2 * h] * scale, value[n][2 * h + 1] * scale),
                                  pack<T>(value[n + 1][2 * h] * scale, value[n + 1][2 * h + 1] * scale)};
        const uint32_t other = __shfl_xor_sync(~0u, odd ? mine[0] : mine[1], 1);
        const uint2 pair = odd ? uint2{other, mine[1]} : uint2{mine[0], other};
        if (query < task.queries) {
          *reinterpret_cast<uint2*>(row + (n + odd) * 8 + lane % 4 / 2 * 4) = pair;
        }
      }
    }
  }
};

}  // namespace dp
