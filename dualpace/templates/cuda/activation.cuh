// The activation of the gated MLP.
#pragma once
#include "common/config.hpp"

namespace dp {

inline __device__ float activate(float x) {
  // 0.5 * (1 + tanh(u)) = sigmoid(2 * u)
  constexpr float kTwoRootTwoOverPi = 1.5957691216f;
  const float u = cfg::kActivation == cfg::Activation::silu ? x : kTwoRootTwoOverPi * (x + 0.044715f * x * x * x);
  return x / (1.0f + __expf(-u));
}

}  // namespace dp
