// What works on one token at a time: embedding, norms, rotary embedding and KV append, gate, gather.
#pragma once
#include "host/block.hpp"
#include "host/simd.hpp"

namespace dp::DP_ISA {

// Below this many tokens one thread is done before others have started.
constexpr int kParallelTokens = 4;

inline void embed(const Element* table, const int32_t* token, float* residual, int tokens) {
  // The scale has the type of the weights, as in the reference.
  Element rounded[kLanes];
  store(rounded, broadcast(cfg::kEmbedScale));
  const Vec scale = load(rounded);
  for (int t = 0; t < tokens; ++t) {
    const Element* row = table + static_cast<int64_t>(token[t]) * cfg::kHidden;
    float* out = residual + static_cast<int64_t>(t) * cfg::kHidden;
    for (int i = 0; i < cfg::kHidden; i += kLanes) store(out + i, load(row + i) * scale);
  }
}

// y = x / rms(x) * (weight + offset)
template <int kSize>
inline void norm_row(const Element* weight, const float* x, float* y) {
  Vec squares{};
  for (int i = 0; i < kSize; i += kLanes) squares += load(x + i) * load(x + i);
  const float scale = 1.0F / __builtin_sqrtf(sum(squares) / kSize + cfg::kNormEps);
  for (int i = 0; i < kSize; i += kLanes) store(y + i, load(x + i) * scale * (load(weight + i) + cfg::kNormOffset));
}

inline void norm(const Element* weight, const float* x, float* y, int tokens) {
#pragma omp parallel for if (tokens >= 4 * kParallelTokens)
  for (int t = 0; t < tokens; ++t) {
    const int64_t row = static_cast<int64_t>(t) * cfg::kHidden;
    norm_row<cfg::kHidden>(weight, x + row, y + row);
  }
}

inline void add_norm(const Element* weight, float* residual, const float* y, float* x, int tokens) {
#pragma omp parallel for if (tokens >= 4 * kParallelTokens)
  for (int t = 0; t < tokens; ++t) {
    const int64_t row = static_cast<int64_t>(t) * cfg::kHidden;
    for (int i = 0; i < cfg::kHidden; i += kLanes)
      store(residual + row + i, load(residual + row + i) + load(y + row + i));
    norm_row<cfg::kHidden>(weight, residual + row, x + row);
  }
}

inline Vec activate(Vec x) {
  if constexpr (cfg::kActivation == cfg::Activation::silu) return x * sigmoid(x);
  // 0.5 * (1 + tanh(u)) = sigmoid(2 * u)
  constexpr float kTwoRootTwoOverPi = 1.5957691216F;
  return x * sigmoid(kTwoRootTwoOverPi * (x + 0.044715F * x * x * x));
}

inline void gate(const float* gate_up, float* act, int tokens) {
  constexpr int kWidth = cfg::kIntermediate;
#pragma omp parallel for if (tokens >= kParallelTokens)
  for (int t = 0; t < tokens; ++t) {
    const float* in = gate_up + static_cast<int64_t>(t) * 2 * kWidth;
    float* out = act + static_cast<int64_t>(t) * kWidth;
    for (int i = 0; i < kWidth; i += kLanes) store(out + i, activate(load(in + i)) * load(in + kWidth + i));
  }
}

inline void gather(const float* x, const int32_t* index, float* last, int samples) {
  for (int s = 0; s < samples; ++s) {
    __builtin_memcpy(last + static_cast<int64_t>(s) * cfg::kHidden, x + static_cast<int64_t>(index[s]) * cfg::kHidden,
                     cfg::kHidden * sizeof(float));
  }
}

// angles[token] = head_dim / 2 cosines, then as many sines, times `factor`. The angle is an fp32 product, as in the
// reference with which models are trained: the exact angle would differ from it far into a long context.
inline void rope_angles(const int32_t* position, const float* frequencies, float factor, float* angles, int tokens) {
  constexpr int kPairsOfHead = cfg::kHeadDim / 2;
#pragma omp parallel for if (tokens >= kParallelTokens)
  for (int t = 0; t < tokens; ++t) {
    float* cosines = angles + static_cast<int64_t>(t) * cfg::kHeadDim;
    for (int i = 0; i < kPairsOfHead; ++i) {
      const float angle = static_cast<float>(position[t]) * frequencies[i];
      cosines[i] = __builtin_cosf(angle) * factor;
      cosines[kPairsOfHead + i] = __builtin_sinf(angle) * factor;
    }
  }
}

// Rotates the pairs (i, i + head_dim / 2).
inline void rotate(float* head, const float* cosines) {
  constexpr int kHalf = cfg::kHeadDim / 2;
  const float* sines = cosines + kHalf;
  for (int i = 0; i < kHalf; ++i) {
    const float a = head[i];
    const float b = head[kHalf + i];
    head[i] = a * cosines[i] - b * sines[i];
    head[kHalf + i] = b * cosines[i] + a * sines[i];
  }
}

inline void store_head(Element* to, const float* from) {
  for (int i = 0; i < cfg::kHeadDim; i += kLanes) store(to + i, load(from + i));
}

// Normalises (with cfg::kQkNorm) and rotates Q and K in place, and writes K and V to the pool at `slot`.
inline void rope_append(const int32_t* slot, const float* angles, const Element* q_norm, const Element* k_norm,
                        float* qkv, Element* pool, int tokens) {
#pragma omp parallel for if (tokens >= kParallelTokens)
  for (int t = 0; t < tokens; ++t) {
    const float* cosines = angles + static_cast<int64_t>(t) * cfg::kHeadDim;
    float* row = qkv + static_cast<int64_t>(t) * kQkvSize;
    for (int h = 0; h < cfg::kHeads + cfg::kKvHeads; ++h) {
      float* head = row + h * cfg::kHeadDim;
      if constexpr (cfg::kQkNorm) norm_row<cfg::kHeadDim>(h < cfg::kHeads ? q_norm : k_norm, head, head);
      rotate(head, cosines);
    }
    Element* block = pool + slot[t] / cfg::kPageSize * kBlockElements;
    const float* keys = row + cfg::kHeads * cfg::kHeadDim;
    for (int h = 0; h < cfg::kKvHeads; ++h) {
      Element* key = block + head_offset(h, slot[t] % cfg::kPageSize);
      store_head(key, keys + h * cfg::kHeadDim);
      store_head(key + kValueOffset, keys + (cfg::kKvHeads + h) * cfg::kHeadDim);
    }
  }
}

}  // namespace dp::DP_ISA
