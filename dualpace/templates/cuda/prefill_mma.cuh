// Attention of prompt chunks with mma: sm_80 and later. A warp has 16 packed rows of the tile; all warps copy a tile of
// keys while they weigh with the one before, and values likewise.
#pragma once
#include "cuda/prefill.cuh"

namespace dp {

template <class T>
class MmaPrefill {
 public:
  static constexpr int kThreads = kRowWarps * 32;

  // Rows are an odd number of vectors apart, so that eight of them hit all banks.
  struct Shared {
    T query[kTileRows][cfg::kHeadDim + kVector];
    T keys[kTileKeys][cfg::kHeadDim + kVector];
    T values[kTileKeys][cfg::kHeadDim + kVector];
  };

  static __device__ void attend(PrefillTasks& tasks, int share, const int32_t* tables, int window, const T* qkv,
                                const T* pool, PrefillPartial* partial, T* out, Shared& shared) {
    each_task(tasks, share, [&](const PrefillTask& task) {
      attend(task, tables + task.row_slot * cfg::kPagesPerRow, window, qkv, pool, shared)
          .finish(task, warp(), tasks, partial, out);
    });
  }

 private:
  using Rows = PrefillRows<T>;
  static constexpr int kWarpKeys = kTileKeys / kRowWarps;

  static __device__ int warp() { return static_cast<int>(threadIdx.x) / 32; }

  template <int kRows>
  static __device__ void copy(T (&tile)[kRows][cfg::kHeadDim + kVector], const T* base, int source) {
    constexpr int kWarpRows = kRows / kRowWarps;
    const uint32_t to = shared_address(tile[warp() * kWarpRows]);
    copy_rows<kWarpRows>(base, source,
                         [&](int row, int column) { return to + (row * (kRowVectors + 1) + column) * 16; });
    commit_copies();
  }

  static __device__ Rows attend(const PrefillTask& task, const int32_t* table, int window, const T* qkv, const T* pool,
                                Shared& shared) {
    const int lane = threadIdx.x % 32;
    const auto source = [&](int first) {
      return lane < kWarpKeys ? key_row(task, table, first + warp() * kWarpKeys + lane) : -1;
    };
    Rows rows(task, warp(), window);
    int first = task.begin / kTileKeys * kTileKeys;
    int present = source(first);
    __syncthreads();  // all warps are done with the task before this one
    copy(shared.query, qkv, lane < 16 ? query_row(task, warp() * 16 + lane) : -1);
    copy(shared.keys, pool, present);
    for (; first < task.end; first += kTileKeys) {
      copy(shared.values, pool + kValueOffset, present);
      present = source(first + kTileKeys);
      wait_copies<1>();
      __syncthreads();
      float score[kTileKeys / 8][4] = {};
      multiply_keys(score, shared);
      __syncthreads();
      if (first + kTileKeys < task.end) {
        copy(shared.keys, pool, present);
      } else {
        commit_copies();
      }
      float correction[2];
      rows.weigh(score, first, correction);
      rows.rescale(correction);
      uint32_t weights[kTileKeys / 16][4];
      Rows::narrow_weights(score, weights);
      wait_copies<1>();
      __syncthreads();
      add_values(rows.value, weights, shared);
      __syncthreads();
    }
    return rows;
  }

  static __device__ void multiply_keys(float (&score)[kTileKeys / 8][4], const Shared& shared) {
    const int lane = threadIdx.x % 32;
    const uint32_t queries = shared_address(&shared.query[warp() * 16 + lane % 16][lane / 16 * 8]);
    const uint32_t keys = shared_address(&shared.keys[lane / 16 * 8 + lane % 8][lane / 8 % 2 * 8]);
#pragma unroll
    for (int k = 0; k < cfg::kHeadDim / 16; ++k) {
      uint32_t query[4];
      load_matrices<false>(query, queries + k * 32);
#pragma unroll
      for (int n = 0; n < kTileKeys / 16; ++n) {
        uint32_t key[4];
        load_matrices<false>(key, keys + n * 16 * sizeof(shared.keys[0]) + k * 32);
        mma<T>(score[2 * n], query, {key[0], key[1]});
        mma<T>(score[2 * n + 1], query, {key[2], key[3]});
      }
    }
  }

  static __device__ void add_values(float (&value)[Rows::kTiles][4], const uint32_t (&weights)[kTileKeys / 16][4],
                                    const Shared& shared) {
    const int lane = threadIdx.x % 32;
    const uint32_t values = shared_address(&shared.values[lane % 16][lane / 16 * 8]);
#pragma unroll
    for (int k = 0; k < kTileKeys / 16; ++k) {
#pragma unroll
      for (int n = 0; n < cfg::kHeadDim / 16; ++n) {
        uint32_t tile[4];
        load_matrices<true>(tile, values + k * 16 * sizeof(shared.values[0]) + n * 32);
        mma<T>(value[2 * n], weights[k], {tile[0], tile[1]});
        mma<T>(value[2 * n + 1], weights[k], {tile[2], tile[3]});
      }
    }
  }
};

}  // namespace dp
