// FlashInfer's paged prefill for Hopper, planned and launched by its own host code: what gpu_prefill compares with.
// 32/8 heads of 128 in bf16, pools of blocks of K then V, each [kv head][token][head_dim].
#include <cuda_runtime.h>

// Includes all of CUTLASS, cuRAND too, of which the kernel needs this.
#define FLASHINFER_CUTLASS_UTILS_CUH_
#include <cute/tensor.hpp>
#include <cutlass/cutlass.h>
#include <cutlass/numeric_types.h>

#include <flashinfer/attention/hopper/default_params.cuh>
#include <flashinfer/attention/hopper/prefill_sm90.cuh>
#include <flashinfer/attention/hopper/variants.cuh>
#include <flashinfer/attention/scheduler.cuh>

namespace {

using Element = cutlass::bfloat16_t;
constexpr int kHeads = 32, kKvHeads = 8, kHeadDim = 128, kPageSize = 16;

struct Params : flashinfer::BatchPrefillPagedParams<Element, Element, Element, int32_t> {
  struct AdditionalParams {
    float sm_scale;
  } additional_params;
};

constexpr size_t kWorkspace = 64 << 20;
void *host_workspace, *workspace;
flashinfer::PrefillPlanSM90Info info;

}  // namespace

// Plans rows whose queries begin at `queries` [rows + 1], whose pages begin at `pages` [rows + 1] of the list, and which
// have `context` [rows] keys. Host pointers. Returns a CUDA error.
extern "C" int plan(const int32_t* queries, const int32_t* pages, const int32_t* context, int rows, void* stream) {
  if (!workspace) {
    if (const cudaError_t error = cudaMalloc(&workspace, kWorkspace)) return error;
    if (const cudaError_t error = cudaMallocHost(&host_workspace, kWorkspace)) return error;
  }
  return flashinfer::PrefillSM90Plan<int32_t>(
      nullptr, 0, workspace, host_workspace, kWorkspace, info, const_cast<int32_t*>(queries),
      const_cast<int32_t*>(pages), const_cast<int32_t*>(context), queries[rows], rows, kHeads, kKvHeads, kHeadDim,
      kHeadDim, kPageSize, true, true, sizeof(Element), static_cast<cudaStream_t>(stream));
}

// Attends `tokens` queries at `qkv`, rows of `stride` elements, to `pool` with the list of pages `indices`.
extern "C" int run(const void* qkv, int64_t stride, int64_t tokens, const void* pool, const int32_t* indices, void* out,
                   float scale, void* stream) {
  const auto at = [](int64_t offset) {
    return reinterpret_cast<int32_t*>(static_cast<char*>(workspace) + offset);
  };
  Params params{};
  params.q_ptr = static_cast<Element*>(const_cast<void*>(qkv));
  params.k_ptr = static_cast<Element*>(const_cast<void*>(pool));
  params.v_ptr = params.k_ptr + kKvHeads * kPageSize * kHeadDim;
  params.o_ptr = static_cast<Element*>(out);
  params.lse_ptr = nullptr;
  params.q_stride_n = stride;
  params.o_stride_n = kHeads * kHeadDim;
  params.q_stride_h = params.o_stride_h = kHeadDim;
  params.k_stride_n = params.v_stride_n = kHeadDim;
  params.k_stride_h = params.v_stride_h = kPageSize * kHeadDim;
  params.k_page_stride = params.v_page_stride = 2 * kKvHeads * kPageSize * kHeadDim;
  params.nnz_qo = tokens;
  params.num_qo_heads = kHeads;
  params.num_kv_heads = kKvHeads;
  params.group_size = kHeads / kKvHeads;
  params.page_size = kPageSize;
  params.window_left = -1;
  params.causal = true;
  params.qo_tile_indices = at(info.qo_tile_indices_offset);
  params.qo_indptr = at(info.qo_indptr_offset);
  params.kv_indptr = at(info.kv_indptr_offset);
  params.qo_lens = at(info.qo_len_offset);
  params.kv_lens = at(info.kv_len_offset);
  params.head_indices = at(info.head_indices_offset);
  params.work_indptr = at(info.work_indptr_offset);
  params.batch_indices = at(info.batch_indices_offset);
  params.kv_indices = const_cast<int32_t*>(indices);
  params.additional_params.sm_scale = scale;
  return flashinfer::BatchPrefillWithPagedKVCacheDispatched<kHeadDim, kHeadDim, flashinfer::MaskMode::kCausal, false,
                                                            false, flashinfer::DefaultAttention<false>>(
      params, false, static_cast<cudaStream_t>(stream));
}
