// Exponential and logarithm whose bits are the same on every target: each operation is rounded once, and where a
// product is added the fused operation is spelled out, so that no compiler has a choice. Neither is right to the last
// bit.
#pragma once
#include <cstdint>

#include "common/portable.hpp"

namespace dp {

DP_FN inline uint32_t bits_of(float value) {
#ifdef __CUDA_ARCH__
  return __float_as_uint(value);
#else
  return __builtin_bit_cast(uint32_t, value);
#endif
}

DP_FN inline float float_of(uint32_t bits) {
#ifdef __CUDA_ARCH__
  return __uint_as_float(bits);
#else
  return __builtin_bit_cast(float, bits);
#endif
}

// An integer that orders as the value does, the two zeros being one; NaNs lie beyond the infinities.
DP_FN inline int32_t ordered(float value) {
  const auto bits = static_cast<int32_t>(bits_of(value + 0.0f));
  return bits ^ ((bits >> 31) & 0x7FFFFFFF);
}

// Likewise, from 0 on.
DP_FN inline uint32_t ranked(float value) { return static_cast<uint32_t>(ordered(value)) ^ 0x80000000u; }

DP_FN inline float value_of(int32_t order) {
  return float_of(static_cast<uint32_t>(order ^ ((order >> 31) & 0x7FFFFFFF)));
}

DP_FN inline float fused(float a, float b, float c) {
#ifdef __CUDA_ARCH__
  return __fmaf_rn(a, b, c);
#else
  return __builtin_fmaf(a, b, c);
#endif
}

// a * b, where a sum follows that must not swallow it.
DP_FN inline float product(float a, float b) {
#ifdef __CUDA_ARCH__
  return __fmul_rn(a, b);
#else
  return a * b;
#endif
}

// The upper half of a product: `a` times the fraction b / 2^64.
DP_FN inline uint64_t high_product(uint64_t a, uint64_t b) {
#ifdef __CUDA_ARCH__
  return __umul64hi(a, b);
#else
  return static_cast<uint64_t>(static_cast<unsigned __int128>(a) * b >> 64);
#endif
}

// e^x for x <= 0, to 2 ulp; 0 below -86, where results would near the subnormal numbers. The choice is made in
// integers, without a branch, so that compilers make vectors of it.
DP_FN inline float exact_exp(float x) {
  constexpr float kShift = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer in the low bits
  const int32_t lowest = ordered(-86.0f), order = ordered(x);
  const int32_t kept = ~((order - lowest) >> 31);
  const float clamped = value_of(most(order, lowest));
  const float shifted = fused(clamped, 1.44269504f, kShift);
  const float n = shifted - kShift;
  const float r = fused(n, -1.42860677e-6f, fused(n, -0.693145752f, clamped));  // ln 2 in two parts
  float p = 1.0f / 5040;
  p = fused(p, r, 1.0f / 720);
  p = fused(p, r, 1.0f / 120);
  p = fused(p, r, 1.0f / 24);
  p = fused(p, r, 1.0f / 6);
  p = fused(p, r, 0.5f);
  p = fused(p, r, 1.0f);
  p = fused(p, r, 1.0f);
  const uint32_t scaled = bits_of(p) + ((bits_of(shifted) - bits_of(kShift)) << 23);
  return float_of(scaled & static_cast<uint32_t>(kept));
}

// ln x for normal x >= 1, to 3 ulp.
DP_FN inline float exact_log(float x) {
  const uint32_t above = bits_of(x) - bits_of(0.70710677f);
  const float e = static_cast<float>(static_cast<int32_t>(above) >> 23);
  const float m = float_of(bits_of(x) - (above & 0xFF800000u));  // in [sqrt 1/2, sqrt 2)
  const float s = (m - 1.0f) / (m + 1.0f), z = s * s;
  float p = 2.0f / 9;
  p = fused(p, z, 2.0f / 7);
  p = fused(p, z, 2.0f / 5);
  p = fused(p, z, 2.0f / 3);
  p = fused(p, z, 2.0f);
  return fused(e, 0.693147182f, s * p);
}

}  // namespace dp
