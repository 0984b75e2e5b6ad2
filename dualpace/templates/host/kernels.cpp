// One instruction set's kernels. This unit is compiled once for each, with DP_ISA as its namespace.
#include "host/kernels.hpp"

#include "host/attention.hpp"
#include "host/linear.hpp"
#include "host/pointwise.hpp"

namespace dp::DP_ISA {

static const Element* elements(const void* p) { return static_cast<const Element*>(p); }

extern const Kernels kernels = {
    .embed = [](const void* table, const int32_t* token, float* residual,
                int tokens) { embed(elements(table), token, residual, tokens); },
    .norm = [](const void* weight, const float* x, float* y, int tokens) { norm(elements(weight), x, y, tokens); },
    .add_norm = [](const void* weight, float* residual, const float* y, float* x,
                   int tokens) { add_norm(elements(weight), residual, y, x, tokens); },
    .linear = [](const void* w, const void* bias, const float* x, float* y, void* scratch, int in, int out,
                 int rows) { linear(elements(w), elements(bias), x, y, scratch, in, out, rows); },
    .rope_angles = rope_angles,
    .rope_append =
        [](const int32_t* slot, const float* angles, const void* q_norm, const void* k_norm, float* qkv, void* pool,
           int tokens) {
          rope_append(slot, angles, elements(q_norm), elements(k_norm), qkv, static_cast<Element*>(pool), tokens);
        },
    .attention = [](StepBuffers& step, int group, const float* qkv, const void* pool, Workspace& workspace,
                    float* out) { attention(step, group, qkv, elements(pool), workspace, out); },
    .attend_blocks = [](const float* query, const void* pool, const int32_t* block, int blocks, float* out,
                        float* lse) { attend_blocks(query, elements(pool), block, blocks, out, lse); },
    .attention_pass =
        [](StepBuffers& step, int row, const int32_t* table, int context, int begin, int end, const float* qkv,
           const void* pool, Workspace& workspace, void* carried, float* out) {
          if constexpr (kOffload) {
            attention_pass(step, row, table, context, begin, end, qkv, elements(pool), workspace,
                           static_cast<Tile*>(carried), out);
          }
        },
    .carried_bytes = kOffload ? sizeof(Tile) * kCarriedTiles : 0,
    .gate = gate,
    .gather = gather,
};

}  // namespace dp::DP_ISA
