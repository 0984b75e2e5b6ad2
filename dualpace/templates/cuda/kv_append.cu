// Query-key norm, rotary embedding and the append of a step's keys and values to the paged pool.
#include "common/layout.hpp"
#include "cuda/element.cuh"

namespace dp {
namespace {

constexpr int kThreads = 128;
constexpr int kHalf = cfg::kHeadDim / 2;
constexpr int kPairs = (kHalf + 31) / 32;  // of (i, i + kHalf) that one lane holds

__device__ float warp_sum(float x) {
#pragma unroll
  for (int lanes = 16; lanes > 0; lanes /= 2) x += __shfl_xor_sync(~0u, x, lanes);
  return x;
}

// Cosine and sine of `angle` without the local memory that sincosf takes for large arguments: the turn is reduced in
// double precision, which costs nothing at one angle a thread.
__device__ float2 unit(float angle) {
  constexpr double kTurnsPerRadian = 0.15915494309189535;
  const double turns = angle * kTurnsPerRadian;
  float2 rotation;
  sincospif(2.0f * static_cast<float>(turns - rint(turns)), &rotation.y, &rotation.x);
  return rotation;
}

// One warp normalises (if `norm` is there) and rotates the head at `in`, and writes it to `out`.
__device__ void rotate(const Element* in, const Element* norm, const float2* rotation, Element* out) {
  const int lane = threadIdx.x % 32;
  float low[kPairs] = {}, high[kPairs] = {};
#pragma unroll
  for (int j = 0; j < kPairs; ++j) {
    if (const int i = lane + 32 * j; i < kHalf) {
      low[j] = widen(in[i]);
      high[j] = widen(in[i + kHalf]);
    }
  }
  if constexpr (cfg::kQkNorm) {
    float squares = 0;
#pragma unroll
    for (int j = 0; j < kPairs; ++j) squares += low[j] * low[j] + high[j] * high[j];
    const float scale = rsqrtf(warp_sum(squares) / cfg::kHeadDim + cfg::kNormEps);
#pragma unroll
    for (int j = 0; j < kPairs; ++j) {
      if (const int i = lane + 32 * j; i < kHalf) {
        low[j] *= scale * (widen(norm[i]) + cfg::kNormOffset);
        high[j] *= scale * (widen(norm[i + kHalf]) + cfg::kNormOffset);
      }
    }
  }
#pragma unroll
  for (int j = 0; j < kPairs; ++j) {
    if (const int i = lane + 32 * j; i < kHalf) {
      const auto [cosine, sine] = rotation[i];
      out[i] = narrow(low[j] * cosine - high[j] * sine);
      out[i + kHalf] = narrow(high[j] * cosine + low[j] * sine);
    }
  }
}

}  // namespace

// For each token of the step: Q is normalised and rotated in place in `qkv` [tokens][kQkvColumns]; K likewise on its
// way to `pool`, the group's pool of one layer, at `slot`; V is copied there. `frequency` [kHeadDim / 2] is in radians
// a position, `magnitude` multiplies every rotation. `q_norm` and `k_norm` [kHeadDim] are read only with kQkNorm. Grid:
// any number of CTAs of kThreads.
extern "C" __global__ void __launch_bounds__(kThreads)
    dp_kv_append(const StepBuffers* step, int group, const float* frequency, float magnitude, const Element* q_norm,
                 const Element* k_norm, Element* qkv, Element* pool) {
  __shared__ float2 rotation[kHalf];
  constexpr int kWarps = kThreads / 32;
  const int warp = threadIdx.x / 32;
  for (unsigned token = blockIdx.x; token < step->tokens; token += gridDim.x) {
    // The product is rounded to float before it is reduced, as models are trained and published with.
    const auto position = static_cast<float>(step->position[token]);
    for (int i = threadIdx.x; i < kHalf; i += kThreads) {
      const float2 turn = unit(position * frequency[i]);
      rotation[i] = {magnitude * turn.x, magnitude * turn.y};
    }
    __syncthreads();
    Element* row = qkv + int64_t{token} * kQkvColumns;
    const int slot = step->slot[group][token];
    for (int head = warp; head < cfg::kHeads + cfg::kKvHeads; head += kWarps) {
      Element* in = row + head * cfg::kHeadDim;
      if (head < cfg::kHeads) {
        rotate(in, q_norm, rotation, in);
      } else {
        rotate(in, k_norm, rotation,
               pool + key_offset(slot / cfg::kPageSize, head - cfg::kHeads, slot % cfg::kPageSize));
      }
    }
    constexpr int kHeadVectors = cfg::kHeadDim / kVector;
    for (int i = threadIdx.x; i < cfg::kKvHeads * kHeadVectors; i += kThreads) {
      const int head = i / kHeadVectors;
      const int element = i % kHeadVectors * kVector;
      Element* value = pool + key_offset(slot / cfg::kPageSize, head, slot % cfg::kPageSize) + kValueOffset;
      *reinterpret_cast<uint4*>(value + element) = load_vector(row + kValueColumn + head * cfg::kHeadDim + element);
    }
    __syncthreads();
  }
}

}  // namespace dp
