// What works on one token at a time, attention's part apart: embedding, norms, gate, and the gather of sampled rows.
//
// The residual is FP32. It is the sum of two updates a layer, and rounding that sum to 16 bits after each of them would
// be most of the error of a forward pass: a bf16 sum keeps 8 bits of values that Gemma scales to thousands. Nothing
// else is kept long enough for its rounding to add up, and has the type of the weights.
//
// Grids: any number of CTAs; best one a token for the norms and one for each kThreads vectors for the others.
#include "common/layout.hpp"
#include "common/portable.hpp"
#include "cuda/activation.cuh"
#include "cuda/element.cuh"
#include "cuda/linear_epilogue.cuh"
#include "cuda/ptx.cuh"

namespace dp {
namespace {

constexpr int kThreads = 256;
constexpr int kHiddenVectors = cfg::kHidden / kVector;
static_assert(cfg::kHidden % kVector == 0, "model.shape.hidden must be whole 16-byte vectors");
static_assert(cfg::kIntermediate % kVector == 0, "model.shape.intermediate must be whole 16-byte vectors");

// Calls body(row, offset) for every vector of `rows` rows of kSize elements, shared out among the threads of the grid.
template <int kSize, class Body>
__device__ void each_vector(unsigned rows, Body body) {
  constexpr unsigned kVectors = kSize / kVector;
  for (unsigned i = blockIdx.x * kThreads + threadIdx.x; i < rows * kVectors; i += gridDim.x * kThreads) {
    body(i / kVectors, i % kVectors * kVector);
  }
}

// A CTA holds a row in registers.
constexpr int kNormThreads = least((kHiddenVectors + 31) / 32 * 32, 1024);
constexpr int kHeld = (kHiddenVectors + kNormThreads - 1) / kNormThreads;  // vectors of a thread

struct Row {
  Values x[kHeld];

  // Calls body(offset, values) for the thread's vectors.
  template <class Body>
  __device__ void each(Body body) {
#pragma unroll
    for (int j = 0; j < kHeld; ++j) {
      const int vector = threadIdx.x + j * kNormThreads;
      if (kHiddenVectors % kNormThreads == 0 || vector < kHiddenVectors) body(vector * kVector, x[j]);
    }
  }

  template <class T>
  __device__ void load_from(const T* row) {
    each([&](int offset, Values& values) { load(row + offset, values); });
  }

  template <class T>
  __device__ void store_to(T* row) {
    each([&](int offset, Values& values) { store(values, row + offset); });
  }

  __device__ void add(Row& other) {
#pragma unroll
    for (int j = 0; j < kHeld; ++j) {
#pragma unroll
      for (int i = 0; i < kVector; ++i) x[j][i] += other.x[j][i];
    }
  }

  // x = x / rms(x) * (weight + offset). `sums` is the norm's own until the next token.
  __device__ void normalise(Row& weight, float (&sums)[32]) {
    float squares = 0;
    each([&](int, Values& values) {
#pragma unroll
      for (int i = 0; i < kVector; ++i) squares += values[i] * values[i];
    });
#pragma unroll
    for (int lanes = 16; lanes > 0; lanes /= 2) squares += __shfl_xor_sync(~0u, squares, lanes);
    if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = squares;
    __syncthreads();
    float sum = 0;
#pragma unroll
    for (int warp = 0; warp < kNormThreads / 32; ++warp) sum += sums[warp];
    const float scale = rsqrtf(sum / cfg::kHidden + cfg::kNormEps);
#pragma unroll
    for (int j = 0; j < kHeld; ++j) {
#pragma unroll
      for (int i = 0; i < kVector; ++i) x[j][i] *= scale * (weight.x[j][i] + cfg::kNormOffset);
    }
  }
};

}  // namespace

// residual [tokens][kHidden] = kEmbedScale * table[token], `table` [kVocab][kHidden].
extern "C" __global__ void __launch_bounds__(kThreads)
    dp_embed(const StepBuffers* step, const Element* table, float* residual) {
  launch_dependents();
  // The scale has the type of the weights, as in the reference.
  const float scale = widen(narrow(cfg::kEmbedScale));
  wait_dependency();
  each_vector<cfg::kHidden>(step->tokens, [&](unsigned token, int offset) {
    Values x;
    load(table + int64_t{step->token[token]} * cfg::kHidden + offset, x);
#pragma unroll
    for (float& value : x) value *= scale;
    store(x, residual + int64_t{token} * cfg::kHidden + offset);
  });
}

// x [tokens][kHidden] = norm(residual), with weights `norm` [kHidden].
extern "C" __global__ void __launch_bounds__(kNormThreads)
    dp_norm(const StepBuffers* step, const Element* norm, const float* residual, Element* x) {
  __shared__ float sums[32];
  launch_dependents();
  Row weight, row;
  weight.load_from(norm);
  wait_dependency();
  for (unsigned token = blockIdx.x; token < step->tokens; token += gridDim.x) {
    const int64_t begin = int64_t{token} * cfg::kHidden;
    row.load_from(residual + begin);
    row.normalise(weight, sums);
    row.store_to(x + begin);
    __syncthreads();
  }
}

// The same norm, deferred (linear_epilogue.cuh): x [tokens][kHidden] = residual times the weights, and its sums of
// squares [tokens][kSquares].
extern "C" __global__ void __launch_bounds__(kThreads)
    dp_defer_norm(const StepBuffers* step, const Element* norm, const float* residual, Element* x, float* squares) {
  launch_dependents();
  wait_dependency();
  constexpr unsigned kLanes = 16 / kVector;  // that share a sum
  each_vector<cfg::kHidden>(step->tokens, [&](unsigned token, int offset) {
    Values values, weight;
    load(residual + int64_t{token} * cfg::kHidden + offset, values);
    load(norm + offset, weight);
    float sum = 0;
#pragma unroll
    for (int i = 0; i < kVector; ++i) {
      sum += values[i] * values[i];
      values[i] *= weight[i] + cfg::kNormOffset;
    }
    store(values, x + int64_t{token} * cfg::kHidden + offset);
    const unsigned lane = threadIdx.x % 32, mask = ((1u << kLanes) - 1) << (lane / kLanes * kLanes);
#pragma unroll
    for (unsigned lanes = kLanes / 2; lanes > 0; lanes /= 2) sum += __shfl_xor_sync(mask, sum, lanes);
    if (lane % kLanes == 0) squares[token * kSquares + offset / 16] = sum;
  });
}

// residual += y, or norm(y) with weights `post_norm` unless that is null; then x = norm(residual) with weights `norm`.
// All are [tokens][kHidden].
extern "C" __global__ void __launch_bounds__(kNormThreads)
    dp_add_norm(const StepBuffers* step, const Element* post_norm, const Element* norm, float* residual,
                const Element* y, Element* x) {
  __shared__ float sums[2][32];
  launch_dependents();
  Row post_weight, weight, row, update;
  if (post_norm) post_weight.load_from(post_norm);
  weight.load_from(norm);
  wait_dependency();
  for (unsigned token = blockIdx.x; token < step->tokens; token += gridDim.x) {
    const int64_t begin = int64_t{token} * cfg::kHidden;
    update.load_from(y + begin);
    row.load_from(residual + begin);
    if (post_norm) update.normalise(post_weight, sums[0]);
    row.add(update);
    row.store_to(residual + begin);
    row.normalise(weight, sums[1]);
    row.store_to(x + begin);
    __syncthreads();
  }
}

// act [tokens][kIntermediate] = activation(gate) * up; a row of gate_up is kIntermediate gates, then as many ups.
extern "C" __global__ void __launch_bounds__(kThreads)
    dp_gate(const StepBuffers* step, const Element* gate_up, Element* act) {
  launch_dependents();
  wait_dependency();
  each_vector<cfg::kIntermediate>(step->tokens, [&](unsigned token, int offset) {
    Values gate, up;
    const Element* row = gate_up + int64_t{token} * 2 * cfg::kIntermediate + offset;
    load(row, gate);
    load(row + cfg::kIntermediate, up);
#pragma unroll
    for (int i = 0; i < kVector; ++i) gate[i] = activate(gate[i]) * up[i];
    store(gate, act + int64_t{token} * cfg::kIntermediate + offset);
  });
}

// last [samples][kHidden] = rows step->sample_index of x [tokens][kHidden].
extern "C" __global__ void __launch_bounds__(kThreads)
    dp_gather(const StepBuffers* step, const Element* x, Element* last) {
  launch_dependents();
  wait_dependency();
  each_vector<cfg::kHidden>(step->samples, [&](unsigned sample, int offset) {
    const Element* row = x + int64_t{step->sample_index[sample]} * cfg::kHidden;
    *reinterpret_cast<uint4*>(last + int64_t{sample} * cfg::kHidden + offset) = load_vector(row + offset);
  });
}

}  // namespace dp
