// Vectors of floats of the instruction set that a unit is compiled for, and the element types that they load.
//
// Kernel units are compiled once per instruction set, each into the namespace DP_ISA. Everything that they share must
// live in that namespace and nothing may come from inline functions of the standard library: the linker keeps one copy
// of an inline function, and it could be the copy compiled for a machine other than the one that runs it.
#pragma once
#include <immintrin.h>

#include <cstdint>
#include <type_traits>
#include <utility>

#include "common/config.hpp"

namespace dp::DP_ISA {

#ifdef __AVX512F__
constexpr int kLanes = 16;
constexpr int kRegisters = 32;
#else
constexpr int kLanes = 8;
constexpr int kRegisters = 16;
#endif

using Vec = float __attribute__((vector_size(4 * kLanes)));
using IntVec = int32_t __attribute__((vector_size(4 * kLanes)));
using HalfVec = uint16_t __attribute__((vector_size(2 * kLanes)));

struct Bf16 {
  uint16_t bits;
};
struct Fp16 {
  uint16_t bits;
};

// Type of weights and KV.
using Element =
    std::conditional_t<cfg::kDType == DType::bf16, Bf16, std::conditional_t<cfg::kDType == DType::fp16, Fp16, float>>;

static_assert(cfg::kHidden % 16 == 0, "model.shape.hidden must be a multiple of 16");
static_assert(cfg::kIntermediate % 16 == 0, "model.shape.intermediate must be a multiple of 16");
static_assert(cfg::kHeadDim % 16 == 0, "model.shape.head_dim must be a multiple of 16");

inline Vec broadcast(float x) { return x - Vec{}; }

template <class V, class T>
inline V load_bits(const T* p) {
  V v;
  __builtin_memcpy(&v, p, sizeof v);
  return v;
}

inline Vec load(const float* p) { return load_bits<Vec>(p); }
inline Vec load(const Bf16* p) {
  return reinterpret_cast<Vec>(__builtin_convertvector(load_bits<HalfVec>(p), IntVec) << 16);
}
inline Vec load(const Fp16* p) {
#ifdef __AVX512F__
  return _mm512_cvtph_ps(reinterpret_cast<__m256i>(load_bits<HalfVec>(p)));
#else
  return _mm256_cvtph_ps(reinterpret_cast<__m128i>(load_bits<HalfVec>(p)));
#endif
}

inline void store(float* p, Vec v) { __builtin_memcpy(p, &v, sizeof v); }
// Rounds to nearest even, as every reference does.
inline void store(Bf16* p, Vec v) {
  const IntVec bits = reinterpret_cast<IntVec>(v);
  const IntVec rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
  const HalfVec half = __builtin_convertvector(rounded, HalfVec);
  __builtin_memcpy(p, &half, sizeof half);
}
inline void store(Fp16* p, Vec v) {
#ifdef __AVX512F__
  const __m256i half = _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT);
#else
  const __m128i half = _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT);
#endif
  __builtin_memcpy(p, &half, sizeof half);
}

template <class T>
inline float scalar(T x) {
  T lanes[kLanes] = {x};
  return load(lanes)[0];
}
template <>
inline float scalar(float x) {
  return x;
}

inline Vec max(Vec a, Vec b) { return a > b ? a : b; }

template <int kStride, int... kLane>
inline Vec fold(Vec a, Vec b, std::integer_sequence<int, kLane...>) {
  return __builtin_shufflevector(a, b, ((kLane & kStride) != 0 ? kLanes + kLane - kStride : kLane)...) +
         __builtin_shufflevector(a, b, ((kLane & kStride) != 0 ? kLanes + kLane : kLane + kStride)...);
}

// Lane i is the sum over the lanes of v[i], for i < kCount <= kLanes; the other lanes are 0. A sum's order does not
// depend on kCount or i.
template <int kCount, int kFirst = 0, int kSpan = kLanes>
inline Vec sums(const Vec* v) {
  if constexpr (kFirst >= kCount) {
    return Vec{};
  } else if constexpr (kSpan == 1) {
    return v[kFirst];
  } else {
    constexpr int kHalf = kSpan / 2;
    return fold<kHalf>(sums<kCount, kFirst, kHalf>(v), sums<kCount, kFirst + kHalf, kHalf>(v),
                       std::make_integer_sequence<int, kLanes>());
  }
}

inline float sum(Vec v) { return sums<1>(&v)[0]; }

inline float max_lane(Vec v) {
  float largest = v[0];
  for (int i = 1; i < kLanes; ++i) largest = v[i] > largest ? v[i] : largest;
  return largest;
}

// e^x with a relative error below 2e-7; 0 below the smallest normal result, and bounded above.
inline Vec exp(Vec x) {
  constexpr float kLowest = -87.0F;
  constexpr float kHighest = 88.0F;
  constexpr float kLog2E = 1.44269504F;
  constexpr float kLn2High = 0.693359375F;  // few bits, so that its product with an integer is exact
  constexpr float kLn2Low = -2.12194440e-4F;
  constexpr float kToInteger = 12582912.0F;  // 1.5 * 2^23: adding it rounds to an integer held in the low bits
  const Vec bounded = x < kLowest ? broadcast(kLowest) : x > kHighest ? broadcast(kHighest) : x;
  const Vec shifted = bounded * kLog2E + kToInteger;
  const Vec n = shifted - kToInteger;
  const Vec r = bounded - n * kLn2High - n * kLn2Low;
  Vec p = broadcast(1.0F / 5040);
  constexpr float kInverseFactorials[] = {1.0F / 720, 1.0F / 120, 1.0F / 24, 1.0F / 6, 0.5F, 1.0F, 1.0F};
  for (const float coefficient : kInverseFactorials) p = p * r + coefficient;
  const IntVec exponent = reinterpret_cast<IntVec>(shifted) << 23;
  const Vec scaled = reinterpret_cast<Vec>(reinterpret_cast<IntVec>(p) + exponent);
  return x < kLowest ? Vec{} : scaled;
}

inline Vec sigmoid(Vec x) { return 1.0F / (1.0F + exp(-x)); }
// With an absolute error below 3e-7.
inline Vec tanh(Vec x) { return 2.0F * sigmoid(2.0F * x) - 1.0F; }

}  // namespace dp::DP_ISA
