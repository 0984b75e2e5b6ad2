// cuda/prefill.cu.j2 for the deployment "llama-3.1-8b-h200": llama in bf16, GQA ratio 4,
// head_dim 128, pages of 16 tokens, on h200.
// Attention of prompt chunks on paged KV.
#include "cuda/prefill_wgmma.cuh"

namespace dp {

using PrefillAttention = WgmmaPrefill<Element>;

extern "C" {
__constant__ int64_t dp_prefill_shared_bytes = sizeof(PrefillAttention::Shared);
}

// Does the tasks of `group` over `pool`, its pool of one layer, as dp_attention does: the rows of `out` that belong to
// chunks. `partial` has two entries a share. Grid: as many CTAs as the list has shares.
extern "C" __global__ void __launch_bounds__(PrefillAttention::kThreads, 1)
    dp_prefill(const StepBuffers* step, int group, PrefillTasks* tasks_of_group, const Element* qkv,
               const Element* pool, PrefillPartial* partial, Element* out) {
  extern __shared__ __align__(1024) unsigned char tiles[];
  launch_dependents();
  wait_dependency();
  PrefillTasks& tasks = tasks_of_group[group];
  const int share = blockIdx.x;
  if (share >= tasks.shares) return;
  PrefillAttention::attend(tasks, share, step->table[group][0], cfg::kWindow[group], qkv, pool, partial, out,
                           *reinterpret_cast<PrefillAttention::Shared*>(tiles));
}

}  // namespace dp
