// The merge of softmaxes over disjoint keys: of the parts of a CTA into a task's result, of tasks into a token's
// output.
#pragma once
#include <cmath>

#include "common/portable.hpp"
#include "cuda/attention.cuh"

namespace dp {

constexpr float kLog2E = 1.4426950408889634f;
constexpr float kLn2 = 0.6931471805599453f;

// 2^x; 0 for minus infinity.
inline __device__ float exp2_fast(float x) {
  float result;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}

// A score in units of log2 under the soft cap: c * tanh(score / c), where there is a c. tanh x = 1 - 2 / (1 + e^2x):
// the approximate instruction for it, with its error of 2^-11, would be too coarse for scores near the cap.
inline __device__ float soft_capped(float score) {
  if constexpr (cfg::kAttentionSoftcap > 0) {
    constexpr float kCap = cfg::kAttentionSoftcap * kLog2E;
    return kCap - __fdividef(2 * kCap, 1 + exp2_fast(score * (2 * kLog2E / kCap)));
  } else {
    return score;
  }
}

// What a part has seen, relative to its largest score, when that may be minus infinity: none of its keys.
inline __device__ float weight_of(float max, float largest) {
  return max == -INFINITY ? 0.0f : exp2_fast(max - largest);
}

// Softmaxes of the parts of a CTA, in shared memory: largest score in units of log2, sum of exponentials relative to it
// and sum of the values so weighted. Rows are padded so that the lanes of a tensor-core fragment hit different banks.
template <int kParts, int kPad = 4>
struct Exchange {
  float max[kParts][kSliceHeads];
  float sum[kParts][kSliceHeads];
  alignas(16) float value[kParts][kSliceHeads][cfg::kHeadDim + kPad];
  bool last;
};

constexpr int kHeadQuads = cfg::kHeadDim / 4;

// Where a layer's results go. Without `out` they stay partial, for dp_attention_merge to combine with others.
struct Results {
  AttentionTasks& tasks;
  PartialOut* partial;
  PartialLse* lse;
  Element* out;  // [tokens][kHeads][kHeadDim]
};

// Combines the first `parts` parts of each head, and calls store(head of the slice, quad of the head, value, LSE) for
// every four elements of the normalised output. All zeros where no key was seen.
template <int kThreads, int kParts, int kPad, class Store>
__device__ void combine(const Exchange<kParts, kPad>& exchange, int parts, int heads, Store store) {
  for (int i = threadIdx.x; i < heads * kHeadQuads; i += kThreads) {
    const int head = i / kHeadQuads, quad = i % kHeadQuads;
    float largest = -INFINITY;
    for (int p = 0; p < parts; ++p) largest = fmaxf(largest, exchange.max[p][head]);
    float sum = 0;
    float4 value = {};
    for (int p = 0; p < parts; ++p) {
      const float weight = weight_of(exchange.max[p][head], largest);
      const float4 part = *reinterpret_cast<const float4*>(&exchange.value[p][head][quad * 4]);
      sum += weight * exchange.sum[p][head];
      value = {value.x + weight * part.x, value.y + weight * part.y, value.z + weight * part.z,
               value.w + weight * part.w};
    }
    const float scale = sum > 0 ? 1 / sum : 0.0f;
    store(head, quad, float4{value.x * scale, value.y * scale, value.z * scale, value.w * scale},
          (largest + log2f(sum)) * kLn2);
  }
}

template <int kThreads, int kParts, int kPad>
__device__ void combine_into(Element* out, int token, int slice, const Exchange<kParts, kPad>& exchange, int parts) {
  Element* heads = out + (int64_t{token} * cfg::kHeads + first_head_of(slice)) * cfg::kHeadDim;
  combine<kThreads>(exchange, parts, heads_of(slice), [&](int head, int quad, float4 value, float) {
    narrow(value, heads + head * cfg::kHeadDim + quad * 4);
  });
}

// Merges the `count` partial results from `first` on, those of a token's slice, into `out`. A thread combines four
// elements of a head, or those of every n-th result for the CTA to combine; it has several results on their way at a
// time. All threads call it, with a barrier before the exchange is used again.
template <int kThreads, int kParts, int kPad>
__device__ void merge(const Results& results, int token, int slice, int first, int count,
                      Exchange<kParts, kPad>& exchange) {
  constexpr int kQuads = kSliceHeads * kHeadQuads;
  constexpr int kLoads = 12;
  constexpr int kShares = least(most(kThreads / kQuads, 1), kParts);
  for (int i = threadIdx.x; i < kShares * kQuads; i += kThreads) {
    const int share = i / kQuads, head = i % kQuads / kHeadQuads, quad = i % kHeadQuads;
    float largest = -INFINITY, sum = 0;
    float4 value = {};
    for (int begin = share; begin < count; begin += kLoads * kShares) {
      float lse[kLoads];
      float4 part[kLoads];
#pragma unroll
      for (int j = 0; j < kLoads; ++j) {
        const int task = first + least(begin + j * kShares, count - 1);
        lse[j] = __ldcg(&results.lse[task][head]) * kLog2E;
        part[j] = __ldcg(reinterpret_cast<const float4*>(&results.partial[task][head][quad * 4]));
      }
      const float before = largest;
#pragma unroll
      for (int j = 0; j < kLoads; ++j) largest = fmaxf(largest, lse[j]);
      const float correction = weight_of(before, largest);
      sum *= correction;
      value = {value.x * correction, value.y * correction, value.z * correction, value.w * correction};
#pragma unroll
      for (int j = 0; j < kLoads; ++j) {
        const float weight = begin + j * kShares < count ? weight_of(lse[j], largest) : 0.0f;
        if (weight == 0) continue;  // the value of a result that has seen no key may be anything
        sum += weight;
        value = {value.x + weight * part[j].x, value.y + weight * part[j].y, value.z + weight * part[j].z,
                 value.w + weight * part[j].w};
      }
    }
    if (quad == 0) {
      exchange.max[share][head] = largest;
      exchange.sum[share][head] = sum;
    }
    *reinterpret_cast<float4*>(&exchange.value[share][head][quad * 4]) = value;
  }
  __syncthreads();
  combine_into<kThreads>(results.out, token, slice, exchange, kShares);
}

// Takes the parts of finished tasks from the exchange, for all threads of the CTA: to `out` if they are all of a
// token's slice, else to a partial result, and whoever brings the last of the slice merges them. Whether this CTA did
// is looked at only when the next task is finished: the answer takes as long as many keys.
template <int kThreads, int kParts, int kPad = 4>
class Finisher {
 public:
  __device__ Finisher(const Results& results, Exchange<kParts, kPad>& exchange)
      : results_(results), exchange_(exchange) {}

  // The `index`-th task, whose parts are in the exchange; afterwards that is free again.
  __device__ void take(int index, const AttentionTask& task) {
    const bool merges = is_last();
    const bool whole = results_.out && task.tasks == 1;
    if (whole) {
      combine_into<kThreads>(results_.out, task.token, task.slice, exchange_, kParts);
    } else {
      combine<kThreads>(exchange_, kParts, heads_of(task.slice), [&](int head, int quad, float4 value, float lse) {
        *reinterpret_cast<float4*>(&results_.partial[index][head][quad * 4]) = value;
        if (quad == 0) results_.lse[index][head] = lse;
      });
    }
    __syncthreads();
    if (merges) merge_before();
    before_ = task;
    waits_ = results_.out && !whole;
    if (waits_ && threadIdx.x == 0) {
      __threadfence();
      arrived_ = atomicAdd(&results_.tasks.arrived[pair()], 1) + 1;
    }
  }

  // After the last task.
  __device__ void leave() {
    if (is_last()) merge_before();
    __syncthreads();
  }

 private:
  __device__ int pair() const { return before_.token * kSlices + before_.slice; }

  // A barrier, and whether the task before was the last of its slice to arrive.
  __device__ bool is_last() {
    if (threadIdx.x == 0) exchange_.last = waits_ && arrived_ == before_.tasks;
    __syncthreads();
    return exchange_.last;
  }

  __device__ void merge_before() {
    if (threadIdx.x == 0) results_.tasks.arrived[pair()] = 0;
    __threadfence();
    merge<kThreads>(results_, before_.token, before_.slice, before_.first, before_.tasks, exchange_);
    __syncthreads();
  }

  Results results_;
  Exchange<kParts, kPad>& exchange_;
  AttentionTask before_ = {};
  bool waits_ = false;
  int arrived_ = 0;
};

}  // namespace dp
