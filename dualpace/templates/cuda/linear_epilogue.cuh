// Where the outputs of a product go: what follows it in a layer is done on the way.
//
// A norm is two factors, its weights and one number a row. Where it is `deferred`, whoever makes the residual writes it
// times the norm's weights, and of every 16 elements the sum of squares; the product that reads it divides its outputs
// by the root of their mean. So no kernel stands between the two, and nothing is rounded that was not before. bf16 has
// the range of the residual; fp16 does not, and keeps its norms.
#pragma once
#include "common/layout.hpp"
#include "cuda/activation.cuh"
#include "cuda/element.cuh"

namespace dp {

constexpr int kSquares = cfg::kHidden / 16;  // sums of squares of a row
static_assert(cfg::kHidden % 16 == 0, "model.shape.hidden must be a multiple of 16");

// Adds up over the eight lanes that have a strip of a row.
inline __device__ float strip_sum(float x) {
  const unsigned mask = 0xffu << (threadIdx.x % 32 / 8 * 8);
#pragma unroll
  for (int lanes = 4; lanes > 0; lanes /= 2) x += __shfl_xor_sync(mask, x, lanes);
  return x;
}

// What a product reads: row i of x, for the i-th row of outputs.
struct EveryRow {
  __device__ int input_row(int row) const { return row; }
};
struct SampledRows {
  const StepBuffers* step;
  __device__ int input_row(int row) const {
    int found = 0;
    if (row < static_cast<int>(step->samples)) found = step->sample_index[row];
    // Opaque, so that no product of it moves into the condition: ptxas 13.0 then reads the other case's 64-bit zero
    // before it is there.
    asm("" : "+r"(found));
    return found;
  }
};

// Scales of kRows rows, whose sums of squares are `squares` [rows][kSquares], null for 1. A warp has every kWarps-th
// row.
template <int kRows, int kWarps, class Rows>
__device__ void start_scales(const float* squares, const Rows& rows, float (&scale)[kRows]) {
  for (int row = threadIdx.x / 32; row < kRows; row += kWarps) {
    float sum = 0;
    if (squares) {
      const float* of_row = squares + rows.input_row(row) * kSquares;
      for (int i = threadIdx.x % 32; i < kSquares; i += 32) sum += of_row[i];
#pragma unroll
      for (int lanes = 16; lanes > 0; lanes /= 2) sum += __shfl_xor_sync(~0u, sum, lanes);
    }
    scale[row] = squares ? rsqrtf(sum / cfg::kHidden + cfg::kNormEps) : 1.0f;
  }
}

// qkv [rows][kQkvColumns], plus `bias` unless that is null.
struct ToQkv : EveryRow {
  static constexpr int kSpan = 16;
  int rows;
  const float* squares;
  const Element* bias;
  Element* qkv;

  struct Held {
    float low, high;
  };
  __device__ Held hold(int, int output) const {
    Held held = {};
    if (bias) held.low = widen(bias[output]);
    if (bias && output + 8 < kQkvColumns) held.high = widen(bias[output + 8]);
    return held;
  }
  __device__ void put(Held held, int row, int output, float low, float high) const {
    if (row >= rows) return;
    Element* to = qkv + int64_t{row} * kQkvColumns + output;
    to[0] = narrow(low + held.low);
    if (output + 8 < kQkvColumns) to[8] = narrow(high + held.high);
  }
};

// The same, rotated; keys and values go to the pool, as with dp_kv_append.
struct ToRotated : EveryRow {
  static constexpr int kSpan = cfg::kHeadDim;
  static constexpr int kHalf = cfg::kHeadDim / 2;
  const StepBuffers* step;
  const float* squares;
  const Element* bias;
  int group;
  const float2* angles;
  Element* qkv;
  Element* pool;

  struct Held {
    float2 rotation;
    float low, high;
    int slot;
  };
  __device__ Held hold(int row, int output) const {
    Held held = {{1, 0}, 0, 0, 0};
    if (row >= static_cast<int>(step->tokens)) return held;
    if (output < kValueColumn) held.rotation = angles[row * kHalf + output % cfg::kHeadDim];
    if (bias) held.low = widen(bias[output]), held.high = widen(bias[output + kHalf]);
    held.slot = step->slot[group][row];
    return held;
  }
  __device__ void put(const Held& held, int row, int output, float low, float high) const {
    if (row >= static_cast<int>(step->tokens)) return;
    low += held.low, high += held.high;
    Element* to = qkv + int64_t{row} * kQkvColumns + output;
    if (output >= kKeyColumn) {
      const bool value = output >= kValueColumn;
      const int column = output - (value ? kValueColumn : kKeyColumn);
      to = pool + column % cfg::kHeadDim + (value ? kValueOffset : 0) +
           key_offset(held.slot / cfg::kPageSize, column / cfg::kHeadDim, held.slot % cfg::kPageSize);
    }
    const auto [cosine, sine] = held.rotation;
    to[0] = narrow(low * cosine - high * sine);
    to[kHalf] = narrow(high * cosine + low * sine);
  }
};

// y [rows][kHidden].
struct ToUpdate : EveryRow {
  static constexpr int kSpan = 16;
  static constexpr const float* squares = nullptr;
  int rows;
  Element* y;

  struct Held {};
  __device__ Held hold(int, int) const { return {}; }
  __device__ void put(Held, int row, int output, float low, float high) const {
    if (row >= rows) return;
    Element* to = y + int64_t{row} * cfg::kHidden + output;
    to[0] = narrow(low);
    to[8] = narrow(high);
  }
};

// residual [rows][kHidden] += outputs. If the norm that follows, of weights `norm`, is deferred: x [rows][kHidden] and
// sums of squares [rows][kSquares] of it; else `norm` is null.
struct ToResidual : EveryRow {
  static constexpr int kSpan = 16;
  static constexpr const float* squares = nullptr;
  int rows;
  float* residual;
  const Element* norm;
  Element* x;
  float* squares_of_x;

  struct Held {
    float low, high, low_norm, high_norm;
  };
  __device__ Held hold(int row, int output) const {
    const float* from = residual + int64_t{row} * cfg::kHidden + output;
    Held held = {from[0], from[8], 0, 0};
    if (norm)
      held.low_norm = widen(norm[output]) + cfg::kNormOffset,
      held.high_norm = widen(norm[output + 8]) + cfg::kNormOffset;
    return held;
  }
  __device__ void put(const Held& held, int row, int output, float low, float high) const {
    if (row >= rows) return;
    low += held.low, high += held.high;
    const int64_t at = int64_t{row} * cfg::kHidden + output;
    residual[at] = low;
    residual[at + 8] = high;
    if (!norm) return;
    x[at] = narrow(low * held.low_norm);
    x[at + 8] = narrow(high * held.high_norm);
    const float sum = strip_sum(low * low + high * high);
    if (output % 16 == 0) squares_of_x[row * kSquares + output / 16] = sum;
  }
};

// act [rows][kIntermediate] = activation(gate) * up.
struct ToActivation : EveryRow {
  static constexpr int kSpan = 2 * cfg::kIntermediate;
  int rows;
  const float* squares;
  Element* act;

  struct Held {};
  __device__ Held hold(int, int) const { return {}; }
  __device__ void put(Held, int row, int output, float low, float high) const {
    if (row < rows) act[int64_t{row} * cfg::kIntermediate + output] = narrow(activate(low) * high);
  }
};

// logits [samples][kVocab].
struct ToLogits : SampledRows {
  static constexpr int kSpan = 16;
  const float* squares;
  float* logits;

  struct Held {};
  __device__ Held hold(int, int) const { return {}; }
  __device__ void put(Held, int row, int output, float low, float high) const {
    if (row >= static_cast<int>(step->samples)) return;
    float* to = logits + int64_t{row} * cfg::kVocab + output;
    if (output < cfg::kVocab) to[0] = low;
    if (output + 8 < cfg::kVocab) to[8] = high;
  }
};

}  // namespace dp
