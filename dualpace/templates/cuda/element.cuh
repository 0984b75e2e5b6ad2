// The element type of weights, activations and KV, and the 16-byte vectors that move it.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <type_traits>

#include "common/config.hpp"

namespace dp {

// `narrow` rounds to nearest even.
template <DType>
struct ElementOf;
template <>
struct ElementOf<DType::bf16> {
  using type = __nv_bfloat16;
  static __device__ type narrow(float x) { return __float2bfloat16_rn(x); }
};
template <>
struct ElementOf<DType::fp16> {
  using type = __half;
  static __device__ type narrow(float x) { return __float2half_rn(x); }
};
template <>
struct ElementOf<DType::fp32> {
  using type = float;
  static __device__ type narrow(float x) { return x; }
};
using Element = ElementOf<cfg::kDType>::type;
static_assert(sizeof(Element) == cfg::kElementBytes);

// Elements of a 16-byte load, the widest that one thread can make.
constexpr int kVector = 16 / cfg::kElementBytes;
static_assert(cfg::kHeadDim % kVector == 0, "a head must be whole 16-byte vectors");

inline __device__ float widen(float x) { return x; }
inline __device__ float widen(__half x) { return __half2float(x); }
inline __device__ float widen(__nv_bfloat16 x) { return __bfloat162float(x); }

inline __device__ Element narrow(float x) { return ElementOf<cfg::kDType>::narrow(x); }

inline __device__ void narrow(float4 x, Element* out) {
  alignas(16) const Element elements[4] = {narrow(x.x), narrow(x.y), narrow(x.z), narrow(x.w)};
  using Quad = std::conditional_t<sizeof(Element) == 4, uint4, uint2>;
  *reinterpret_cast<Quad*>(out) = *reinterpret_cast<const Quad*>(elements);
}

inline __device__ uint4 load_vector(const Element* address) { return *reinterpret_cast<const uint4*>(address); }

inline __device__ void widen(const uint4& vector, float (&out)[kVector]) {
  const auto* elements = reinterpret_cast<const Element*>(&vector);
#pragma unroll
  for (int i = 0; i < kVector; ++i) out[i] = widen(elements[i]);
}

// kVector values, FP32 while they are computed with, Elements or FP32 in memory.
using Values = float[kVector];

template <class T>
__device__ void load(const T* from, Values& x) {
  if constexpr (sizeof(T) == 2) {
    widen(load_vector(from), x);
  } else {
#pragma unroll
    for (int i = 0; i < kVector; i += 4) {
      const float4 quad = *reinterpret_cast<const float4*>(from + i);
      x[i] = quad.x, x[i + 1] = quad.y, x[i + 2] = quad.z, x[i + 3] = quad.w;
    }
  }
}

template <class T>
__device__ void store(const Values& x, T* to) {
  alignas(16) T elements[kVector];
#pragma unroll
  for (int i = 0; i < kVector; ++i) {
    if constexpr (std::is_same_v<T, float>) {
      elements[i] = x[i];
    } else {
      elements[i] = narrow(x[i]);
    }
  }
#pragma unroll
  for (int i = 0; i < kVector; i += 16 / sizeof(T)) {
    *reinterpret_cast<uint4*>(to + i) = *reinterpret_cast<const uint4*>(elements + i);
  }
}

// The KV pool of one layer: blocks of K then V, each [kv head][token][head_dim].
constexpr int kHeadStride = cfg::kPageSize * cfg::kHeadDim;
constexpr int kValueOffset = cfg::kKvHeads * kHeadStride;

// Offset in elements of the key of `kv_head` at `offset` in `page`; its value lies kValueOffset further on.
inline __device__ int64_t key_offset(int page, int kv_head, int offset) {
  return int64_t{page} * (2 * kValueOffset) + kv_head * kHeadStride + offset * cfg::kHeadDim;
}

// A row of the qkv buffer: the query heads, then the key heads, then the value heads.
constexpr int kKeyColumn = cfg::kHeads * cfg::kHeadDim;
constexpr int kValueColumn = kKeyColumn + cfg::kKvHeads * cfg::kHeadDim;
constexpr int kQkvColumns = kValueColumn + cfg::kKvHeads * cfg::kHeadDim;

}  // namespace dp
