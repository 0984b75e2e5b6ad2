// Attention of a slice on the tensor cores.
//
// A warp reads its own chunks of 16 keys into shared memory, one ahead and across the ends of tasks, and needs no other
// warp until a task is done. Keys are the rows of a product and the heads of the slice its columns, padded to eight:
// scores are K Q^T, outputs V^T P^T, softmax is in FP32.
#pragma once
#include <type_traits>

#include "common/portable.hpp"
#include "cuda/attention_merge.cuh"
#include "cuda/ptx.cuh"

namespace dp {

// Four 8 x 8 matrices; lane l gives row l % 8 of matrix l / 8.
template <bool kTransposed>
__device__ void load_matrices(uint32_t (&a)[4], uint32_t row) {
  if constexpr (kTransposed) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(a[0]), "=r"(a[1]), "=r"(a[2]), "=r"(a[3])
                 : "r"(row)
                 : "memory");
  } else {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(a[0]), "=r"(a[1]), "=r"(a[2]), "=r"(a[3])
                 : "r"(row)
                 : "memory");
  }
}

inline __device__ uint32_t transpose_matrix(uint32_t x) {
  uint32_t result;
  asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(result) : "r"(x));
  return result;
}

template <class T>
__device__ uint32_t pack(float low, float high) {
  if constexpr (std::is_same_v<T, __nv_bfloat16>) {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
    return *reinterpret_cast<const uint32_t*>(&pair);
  } else {
    const __half2 pair = __floats2half2_rn(low, high);
    return *reinterpret_cast<const uint32_t*>(&pair);
  }
}

template <class T>
class MmaAttention {
  static constexpr int kChunkKeys = 16;
  static constexpr int kChunkPages = kChunkKeys > cfg::kPageSize ? kChunkKeys / cfg::kPageSize : 1;
  static_assert(kChunkKeys % cfg::kPageSize == 0 || cfg::kPageSize % kChunkKeys == 0);
  static constexpr int kPageRows = kChunkKeys / kChunkPages;
  static constexpr int kRowVectors = cfg::kHeadDim / kVector;
  static constexpr int kTiles = cfg::kHeadDim / 16;       // of a head
  static constexpr int kColumns = (kSliceHeads + 7) / 8;  // tiles of eight heads

  // Keys, then values, of a chunk. Rows are an odd number of vectors apart, so that eight of them hit all banks.
  struct Stage {
    T row[2][kChunkKeys][cfg::kHeadDim + kVector];
  };

  static constexpr int kStages = 2;  // one in use, one on its way
  static constexpr bool fits(int warps) {
    return warps * (kStages * sizeof(Stage) + sizeof(Exchange<1>)) + 1024 <= kSmBytes;
  }

 public:
  static constexpr int kWarps = fits(4) ? 4 : 2;
  static constexpr int kThreads = kWarps * 32;

 private:
  static_assert(fits(kWarps), "this head_dim and GQA ratio need more shared memory than the SM has");

  // The chunks that one warp reads, in the order in which it attends to them. The warps of a CTA take turns; all take
  // part in every round of a task, the last of which may have no chunk for some.
  class Reader {
   public:
    __device__ Reader(const AttentionTask* next, const AttentionTask* last, const int32_t* tables, const T* pool)
        : next_(next), last_(last), tables_(tables), pool_(pool) {
      enter();
    }

    // Starts the copy of the next chunk, if there is one, and looks up the pages of the one after it.
    __device__ void read(Stage& stage) {
      if (!done_) {
        if (key_ < task_.end) copy(stage);
        key_ += kWarps * kChunkKeys;
        if (key_ - warp_key() < task_.end) {
          look_up();
        } else {
          enter();
        }
      }
      commit_copies();
    }

   private:
    static __device__ int warp_key() { return static_cast<int>(threadIdx.x) / 32 * kChunkKeys; }

    __device__ void copy(Stage& stage) const {
      const int lane = threadIdx.x % 32;
      const T* base[kChunkPages];
#pragma unroll
      for (int i = 0; i < kChunkPages; ++i) {
        base[i] = pool_ + key_offset(page_[i], kv_head_of(task_.slice), key_ % cfg::kPageSize);
      }
      const uint32_t to = shared_address(&stage);
#pragma unroll
      for (int i = 0; i < kChunkKeys * kRowVectors / 32; ++i) {
        const int vector = i * 32 + lane;
        const int row = vector / kRowVectors, column = vector % kRowVectors;
        const int part = row / kPageRows;
        const bool valid = key_ + row >= task_.begin && key_ + row < task_.end;
        const T* from = valid ? base[part] + (vector - part * kPageRows * kRowVectors) * kVector : pool_;
        const uint32_t offset = (row * (kRowVectors + 1) + column) * 16;
        copy_vector(to + offset, from, valid);
        copy_vector(to + sizeof(stage.row[0]) + offset, valid ? from + kValueOffset : from, valid);
      }
    }

    __device__ void enter() {
      done_ = next_ == last_;
      if (done_) return;
      task_ = *next_++;
      table_ = tables_ + task_.row_slot * cfg::kPagesPerRow;
      key_ = task_.begin / kChunkKeys * kChunkKeys + warp_key();
      look_up();
    }

    __device__ void look_up() {
#pragma unroll
      for (int i = 0; i < kChunkPages; ++i) {
        const int key = key_ + i * kPageRows;
        page_[i] = key < task_.end ? table_[key / cfg::kPageSize] : 0;
      }
    }

    const AttentionTask *next_, *last_;
    const int32_t* tables_;
    const T* pool_;
    bool done_;
    AttentionTask task_;
    const int32_t* table_;
    int key_;  // the first of the chunk
    int page_[kChunkPages];
  };

  // Query fragments: of heads lane / 4 of each column tile, zeros where there is no head.
  struct Query {
    uint32_t tile[kColumns][kTiles][2];

    __device__ Query(const T* heads, int count) {
      const int lane = threadIdx.x % 32;
#pragma unroll
      for (int c = 0; c < kColumns; ++c) {
        const int head = c * 8 + lane / 4;
        const auto* words = reinterpret_cast<const uint32_t*>(heads + head * cfg::kHeadDim);
#pragma unroll
        for (int k = 0; k < kTiles; ++k) {
          tile[c][k][0] = head < count ? words[k * 8 + lane % 4] : 0;
          tile[c][k][1] = head < count ? words[k * 8 + lane % 4 + 4] : 0;
        }
      }
    }
  };

  // What a warp has seen of a task. A lane has heads lane % 4 * 2 and the next of each column tile; of a head's `sum`
  // it has the share of its keys, of `value` elements lane / 4 and lane / 4 + 8 of each tile.
  struct Softmax {
    float max[kColumns][2];
    float sum[kColumns][2] = {};
    float value[kColumns][kTiles][4] = {};

    __device__ Softmax() {
#pragma unroll
      for (int c = 0; c < kColumns; ++c) max[c][0] = max[c][1] = -INFINITY;
    }
  };

  // Adds a chunk, of which at least one key lies in [begin, end); the others score minus infinity.
  static __device__ void add(Softmax& softmax, const Query& query, const Stage& stage, int first, int begin, int end) {
    const int lane = threadIdx.x % 32;
    float score[kColumns][4] = {};
    const uint32_t keys = shared_address(&stage.row[0][lane % 16][lane / 16 * 8]);
#pragma unroll
    for (int k = 0; k < kTiles; ++k) {
      uint32_t tile[4];
      load_matrices<false>(tile, keys + k * 32);
#pragma unroll
      for (int c = 0; c < kColumns; ++c) mma<T>(score[c], tile, query.tile[c][k]);
    }
    const bool whole = first >= begin && first + kChunkKeys <= end;
    uint32_t weights[kColumns][2];
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int key = first + lane / 4 + i / 2 * 8;
        const float scaled = soft_capped(score[c][i] * (cfg::kAttentionScale * kLog2E));
        score[c][i] = whole || (key >= begin && key < end) ? scaled : -INFINITY;
      }
      float correction[2];
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        float largest = fmaxf(score[c][h], score[c][h + 2]);
#pragma unroll
        for (int lanes = 4; lanes < 32; lanes *= 2) largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, lanes));
        largest = fmaxf(largest, softmax.max[c][h]);
        correction[h] = exp2_fast(softmax.max[c][h] - largest);
        softmax.max[c][h] = largest;
        score[c][h] = exp2_fast(score[c][h] - largest);
        score[c][h + 2] = exp2_fast(score[c][h + 2] - largest);
        softmax.sum[c][h] = softmax.sum[c][h] * correction[h] + score[c][h] + score[c][h + 2];
      }
      weights[c][0] = transpose_matrix(pack<T>(score[c][0], score[c][1]));
      weights[c][1] = transpose_matrix(pack<T>(score[c][2], score[c][3]));
#pragma unroll
      for (int m = 0; m < kTiles; ++m) {
#pragma unroll
        for (int i = 0; i < 4; ++i) softmax.value[c][m][i] *= correction[i % 2];
      }
    }
    const uint32_t values = shared_address(&stage.row[1][lane % 8 + lane / 16 * 8][lane / 8 % 2 * 8]);
#pragma unroll
    for (int m = 0; m < kTiles; ++m) {
      uint32_t tile[4];
      load_matrices<true>(tile, values + m * 32);
#pragma unroll
      for (int c = 0; c < kColumns; ++c) mma<T>(softmax.value[c][m], tile, weights[c]);
    }
  }

  static __device__ void put(const Softmax& softmax, int warp, Exchange<kWarps>& exchange) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        float sum = softmax.sum[c][h];
#pragma unroll
        for (int lanes = 4; lanes < 32; lanes *= 2) sum += __shfl_xor_sync(~0u, sum, lanes);
        const int head = c * 8 + lane % 4 * 2 + h;
        if (head >= kSliceHeads) continue;
        exchange.max[warp][head] = softmax.max[c][h];
        exchange.sum[warp][head] = sum;
#pragma unroll
        for (int m = 0; m < kTiles; ++m) {
          exchange.value[warp][head][m * 16 + lane / 4] = softmax.value[c][m][h];
          exchange.value[warp][head][m * 16 + lane / 4 + 8] = softmax.value[c][m][h + 2];
        }
      }
    }
  }

 public:
  struct Shared {
    Stage stage[kWarps][kStages];
    Exchange<kWarps> exchange;
  };

  // So many that an SM has at most 144 KiB of stages: with more on their way the SMs that memory serves best run
  // further ahead of the others, and all are done later.
  static constexpr int kSharedBytes =
      most(static_cast<int>(sizeof(Shared)), kSmBytes / ((144 << 10) / static_cast<int>(sizeof(Shared::stage)) + 1));

  // Does the tasks [first, last) with the block tables `tables` [row slot][kPagesPerRow] of their group.
  static __device__ void attend(const Results& results, int first, int last, const int32_t* tables, const T* qkv,
                                const T* pool, Shared& shared) {
    const int warp = static_cast<int>(threadIdx.x) / 32;
    Stage(&ring)[kStages] = shared.stage[warp];
    const AttentionTask* tasks = results.tasks.task;
    Reader reader(tasks + first, tasks + last, tables, pool);
    Finisher<kThreads, kWarps> finish(results, shared.exchange);
    reader.read(ring[0]);
    int stage = 0;
    for (int index = first; index < last; ++index) {
      const AttentionTask task = tasks[index];
      const Query query(qkv + int64_t{task.token} * kQkvColumns + first_head_of(task.slice) * cfg::kHeadDim,
                        heads_of(task.slice));
      Softmax softmax;
      for (int key = task.begin / kChunkKeys * kChunkKeys; key < task.end; key += kWarps * kChunkKeys) {
        // All lanes are done with the chunk before this one, whose stage the next copy takes.
        wait_copies<0>();
        __syncwarp();
        reader.read(ring[stage ^ 1]);
        const int mine = key + warp * kChunkKeys;
        if (mine < task.end) add(softmax, query, ring[stage], mine, task.begin, task.end);
        stage ^= 1;
      }
      put(softmax, warp, shared.exchange);
      finish.take(index, task);
    }
    finish.leave();
  }
};

}  // namespace dp
