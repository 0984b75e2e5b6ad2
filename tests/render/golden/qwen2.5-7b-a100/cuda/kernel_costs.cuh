// cuda/kernel_costs.cuh.j2 for the deployment "qwen2.5-7b-a100": qwen2 in bf16, GQA ratio 7,
// head_dim 128, pages of 16 tokens, on a100.
// What attention's kernels cost: scaled from h200 with heads of 128, 7 to a KV head, in bf16.
#pragma once
#include "common/attention_cost.hpp"

namespace dp {

// Our own kernel and FlashInfer's. One that was not measured is never the cheaper.
DP_TABLE constexpr KernelCosts kKernelCosts = {
    {.start = 5.8867063e-06f,
     .key = 2.5860708e-10f,
     .tail_key = 1.0803472e-08f,
     .partial = 5.1696127e-09f,
     .merge = 8.7707484e-08f},
    {.start = __builtin_huge_valf()},
};

}  // namespace dp
