// y[rows][out] = x[rows][in] * w[out][in]^T + bias for few rows: the weights are read once, at memory bandwidth.
//
// Inputs and outputs are fp32: they are few, and nothing is gained by rounding them. The exception is the input of a
// product where the machine multiplies pairs of bf16 and the weights are bf16: it is rounded to bf16, as every bf16
// reference does, which at 8 rows is the difference between bound by memory and bound by arithmetic. Outputs never are.
//
// Each output is one accumulator over `in`, in one order: a row's result does not depend on the rows beside it.
#pragma once
#include "host/simd.hpp"

namespace dp::DP_ISA {

#ifdef __AVX512BF16__
constexpr bool kPairs = cfg::kDType == DType::bf16;
#else
constexpr bool kPairs = false;
#endif

// Operands of the inner product, kStep elements at a time; `left` elements of the row are still to come.
template <bool kInPairs>
struct Operands {
  using Input = float;
  using Operand = Vec;
  static constexpr int kStep = kLanes;

  template <class T>
  static Vec operand(const T* p, int) {
    return load(p);
  }
  static Vec multiply_add(Vec sum, Vec a, Vec b) { return sum + a * b; }
  static const float* inputs(const float* x, void*, int64_t) { return x; }
};

#ifdef __AVX512BF16__
template <>
struct Operands<true> {
  using Input = Bf16;
  using Operand = __m512bh;
  static constexpr int kStep = 2 * kLanes;

  static Operand operand(const Bf16* p, int left) {
    const __mmask32 mask = left >= kStep ? 0xffffffffU : 0xffffU;
    return reinterpret_cast<Operand>(_mm512_maskz_loadu_epi16(mask, p));
  }
  static Vec multiply_add(Vec sum, Operand a, Operand b) { return _mm512_dpbf16_ps(sum, a, b); }
  static const Bf16* inputs(const float* x, void* scratch, int64_t count) {
    Bf16* rounded = static_cast<Bf16*>(scratch);
    for (int64_t i = 0; i < count; i += kLanes) store(rounded + i, load(x + i));
    return rounded;
  }
};
#endif

using Product = Operands<kPairs>;

constexpr int kRowTile = 8;
// Weights of a work item: small enough to stay in L2 for further tiles of rows, a multiple of every out_tile.
constexpr int kItemBytes = 128 << 10;
constexpr int kItemOuts = 24;

// Weight rows of a tile: what the registers hold beside `rows` inputs, and no more than prefetching keeps up with.
constexpr int out_tile(int rows) {
  const int fit = (kRegisters - 4) / (rows + 1);
  return fit > 4 ? 4 : fit;
}

// y[r][o] for kRows rows and kOuts weight rows.
//
// Weight rows are read side by side, a pattern that hardware does not prefetch at full speed. Software prefetches them
// in the order of memory, a tile and 4 KiB ahead; prefetches that stride from row to row are far slower. With many rows
// the inputs need L1, and weights are brought to L2 only.
template <int kRows, int kOuts>
inline void tile(const Element* w, const Product::Input* x, int in, const Element* bias, float* y, int out) {
  constexpr int kSums = kRows * kOuts;
  static_assert(kSums <= 2 * kLanes);
  constexpr auto kHint = kRows > 2 ? _MM_HINT_T1 : _MM_HINT_T0;
  const char* ahead = reinterpret_cast<const char*>(w + static_cast<int64_t>(kOuts) * in) + 4096;
  Vec acc[kSums];
#pragma GCC unroll 32
  for (int i = 0; i < kSums; ++i) acc[i] = Vec{};
  for (int k = 0; k < in; k += Product::kStep) {
    Product::Operand weights[kOuts];
#pragma GCC unroll 8
    for (int o = 0; o < kOuts; ++o) {
      _mm_prefetch(ahead, kHint);
      ahead += Product::kStep * sizeof(Element);
      weights[o] = Product::operand(w + static_cast<int64_t>(o) * in + k, in - k);
    }
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      const Product::Operand row = Product::operand(x + static_cast<int64_t>(r) * in + k, in - k);
#pragma GCC unroll 8
      for (int o = 0; o < kOuts; ++o) acc[r * kOuts + o] = Product::multiply_add(acc[r * kOuts + o], weights[o], row);
    }
  }
  alignas(64) float total[2 * kLanes];
  store(total, sums<kSums>(acc));
  if constexpr (kSums > kLanes) store(total + kLanes, sums<kSums, kLanes>(acc));
  for (int o = 0; o < kOuts; ++o) {
    const float offset = bias == nullptr ? 0.0F : scalar(bias[o]);
    for (int r = 0; r < kRows; ++r) y[static_cast<int64_t>(r) * out + o] = total[r * kOuts + o] + offset;
  }
}

// `outs` outputs of kRows rows.
template <int kRows>
inline void strip(const Element* w, const Product::Input* x, int in, const Element* bias, float* y, int out, int outs) {
  constexpr int kOuts = out_tile(kRows);
  int o = 0;
  for (; o + kOuts <= outs; o += kOuts) {
    tile<kRows, kOuts>(w + static_cast<int64_t>(o) * in, x, in, bias == nullptr ? bias : bias + o, y + o, out);
  }
  for (; o < outs; ++o) {
    tile<kRows, 1>(w + static_cast<int64_t>(o) * in, x, in, bias == nullptr ? bias : bias + o, y + o, out);
  }
}

// strip<rows>, for rows from 1 to kRows.
template <int kRows = kRowTile, class... Arguments>
inline void strip_of(int rows, Arguments... arguments) {
  if constexpr (kRows > 1) {
    if (rows < kRows) return strip_of<kRows - 1>(rows, arguments...);
  }
  strip<kRows>(arguments...);
}

// `scratch` holds rows * in elements.
inline void linear(const Element* w, const Element* bias, const float* x, float* y, void* scratch, int in, int out,
                   int rows) {
  const Product::Input* inputs = Product::inputs(x, scratch, static_cast<int64_t>(rows) * in);
  const int item = kItemBytes / (in * static_cast<int>(sizeof(Element))) / kItemOuts * kItemOuts + kItemOuts;
#pragma omp parallel for schedule(static)
  for (int o = 0; o < out; o += item) {
    const int outs = out - o < item ? out - o : item;
    for (int r = 0; r < rows; r += kRowTile) {
      strip_of(rows - r < kRowTile ? rows - r : kRowTile, w + static_cast<int64_t>(o) * in,
               inputs + static_cast<int64_t>(r) * in, in, bias == nullptr ? bias : bias + o,
               y + static_cast<int64_t>(r) * out + o, out, outs);
    }
  }
}

}  // namespace dp::DP_ISA
