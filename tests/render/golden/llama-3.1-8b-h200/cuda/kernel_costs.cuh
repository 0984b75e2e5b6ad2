// cuda/kernel_costs.cuh.j2 for the deployment "llama-3.1-8b-h200": llama in bf16, GQA ratio 4,
// head_dim 128, pages of 16 tokens, on h200.
// What attention's kernels cost: measured on h200 with heads of 128, 4 to a KV head, in bf16.
#pragma once
#include "common/attention_cost.hpp"

namespace dp {

// Our own kernel and FlashInfer's. One that was not measured is never the cheaper.
DP_TABLE constexpr KernelCosts kKernelCosts = {
    {.start = 5.0182216e-06f,
     .key = 1.1665338e-10f,
     .tail_key = 1.0659827e-08f,
     .partial = 2.9664378e-09f,
     .merge = 5.1700585e-08f},
    {.start = __builtin_huge_valf()},
};

}  // namespace dp
