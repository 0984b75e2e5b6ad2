// Attention of a slice without tensor cores, for element types and head sizes that these do not take.
//
// A key is read by as many lanes as it has 16-byte vectors (a reader), all heads of the slice are scored against it
// while it is in registers, and its value is read beside it. Every reader keeps an online softmax in FP32 over its
// keys.
#pragma once
#include "cuda/attention_merge.cuh"

namespace dp {

template <class T>
class FmaAttention {
 public:
  static constexpr int kThreads = 128;

 private:
  static constexpr int lanes_of(int vectors) {
    int lanes = 1;
    while (lanes < vectors && lanes < 32) lanes *= 2;
    return lanes;
  }
  static constexpr int kHeadVectors = cfg::kHeadDim / kVector;
  static constexpr int kLanes = lanes_of(kHeadVectors);
  static constexpr int kLoads = (kHeadVectors + kLanes - 1) / kLanes;  // of each lane, for one key
  static constexpr int kReaders = kThreads / kLanes;
  static constexpr int kUnroll = kSliceHeads > 4 ? 2 : 4;  // keys of a reader in flight

  // Lanes past a head's last vector hold zeros: they add nothing to a score and their output is not stored.
  static __device__ bool holds(int lane, int load) {
    return kLoads * kLanes == kHeadVectors || lane + load * kLanes < kHeadVectors;
  }

  static __device__ void load_head(const T* head, int lane, bool valid, uint4 (&out)[kLoads]) {
#pragma unroll
    for (int j = 0; j < kLoads; ++j) {
      out[j] = valid && holds(lane, j) ? load_vector(head + (lane + j * kLanes) * kVector) : uint4{};
    }
  }

  // What a reader has seen of its keys, for the heads of a slice: largest score, sum of exponentials relative to it,
  // and the lane's share of the sum of values so weighted. Scores are in units of log2, so that exp2 serves.
  struct Softmax {
    float max[kSliceHeads];
    float sum[kSliceHeads];
    float value[kSliceHeads][kLoads][kVector];
  };

  // Adds up to kUnroll keys; those past the end of the task score minus infinity, the first of them is valid.
  static __device__ void add(Softmax& softmax, float (&score)[kUnroll][kSliceHeads],
                             const uint4 (&values)[kUnroll][kLoads]) {
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

  // Attends to the reader's share of a task's keys.
  static __device__ void read(const T* query, const T* pool, const int32_t* table, const AttentionTask& task,
                              int reader, int lane, Softmax& softmax) {
    float q[kSliceHeads][kLoads][kVector];
#pragma unroll
    for (int h = 0; h < kSliceHeads; ++h) {
      uint4 raw[kLoads];
      load_head(query + h * cfg::kHeadDim, lane, h < heads_of(task.slice), raw);
      softmax.max[h] = -INFINITY;
      softmax.sum[h] = 0;
#pragma unroll
      for (int j = 0; j < kLoads; ++j) {
        widen(raw[j], q[h][j]);
#pragma unroll
        for (int i = 0; i < kVector; ++i) {
          q[h][j][i] *= cfg::kAttentionScale * kLog2E;
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
        page[u] = key < task.end ? table[key / cfg::kPageSize] : 0;
      }
    };
    look_up(task.begin);
    for (int first = task.begin; first < task.end; first += kUnroll * kReaders) {
      uint4 keys[kUnroll][kLoads], values[kUnroll][kLoads];
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) {
        const int key = first + u * kReaders + reader;
        const T* head = pool + key_offset(page[u], kv_head_of(task.slice), key % cfg::kPageSize);
        load_head(head, lane, key < task.end, keys[u]);
        load_head(head + kValueOffset, lane, key < task.end, values[u]);
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
        const bool valid = first + u * kReaders + reader < task.end;
#pragma unroll
        for (int h = 0; h < kSliceHeads; ++h) {
#pragma unroll
          for (int lanes = kLanes / 2; lanes > 0; lanes /= 2) score[u][h] += __shfl_xor_sync(~0u, score[u][h], lanes);
          score[u][h] = valid ? soft_capped(score[u][h]) : -INFINITY;
        }
      }
      if (first + reader < task.end) add(softmax, score, values);
    }
  }

  static __device__ void put(const Softmax& softmax, int reader, int lane, Exchange<kReaders>& exchange) {
#pragma unroll
    for (int h = 0; h < kSliceHeads; ++h) {
      exchange.max[reader][h] = softmax.max[h];
      exchange.sum[reader][h] = softmax.sum[h];
#pragma unroll
      for (int j = 0; j < kLoads; ++j) {
#pragma unroll
        for (int i = 0; i < kVector; ++i) {
          if (holds(lane, j)) exchange.value[reader][h][(lane + j * kLanes) * kVector + i] = softmax.value[h][j][i];
        }
      }
    }
  }

 public:
  struct Shared {
    Exchange<kReaders> exchange;
  };
  static constexpr int kSharedBytes = sizeof(Shared);

  // Does the tasks [first, last) with the block tables `tables` [row slot][kPagesPerRow] of their group.
  static __device__ void attend(const Results& results, int first, int last, const int32_t* tables, const T* qkv,
                                const T* pool, Shared& shared) {
    const int reader = static_cast<int>(threadIdx.x) / kLanes, lane = static_cast<int>(threadIdx.x) % kLanes;
    Finisher<kThreads, kReaders> finish(results, shared.exchange);
    for (int index = first; index < last; ++index) {
      const AttentionTask task = results.tasks.task[index];
      Softmax softmax;
      read(qkv + int64_t{task.token} * kQkvColumns + first_head_of(task.slice) * cfg::kHeadDim, pool,
           tables + task.row_slot * cfg::kPagesPerRow, task, reader, lane, softmax);
      put(softmax, reader, lane, shared.exchange);
      finish.take(index, task);
    }
    finish.leave();
  }
};

}  // namespace dp
