// cuda/kernel_costs.cuh.j2 for the deployment "llama-3.1-8b-h200": llama in bf16, GQA ratio 4,
// head_dim 128, pages of 16 tokens, on h200.
// What attention's kernels cost: measured on h200 with heads of 128, 4 to a KV head, in bf16.
#pragma once
#include "common/attention_cost.hpp"

namespace dp {

// Our own kernel and FlashInfer's. One that was not measured is never the cheaper.
DP_TABLE constexpr KernelCosts kKernelCosts = {
    {.start = 5.8287437e-06f,
     .key = 1.2121956e-10f,
     .chain_key = 3.0401868e-08f,
     .task = 3.5852878e-07f,
     .partial = 1.8530992e-09f,
     .merge = 4.248341e-08f},
    {.start = __builtin_huge_valf()},
};

}  // namespace dp
