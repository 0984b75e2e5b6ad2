// FlashInfer's batch decode as its users get it: its own planner on the host, then its own kernels and merge, for heads
// of DP_HEAD_DIM in bf16. "prefill" is what its Python wrapper runs with use_tensor_cores=True.
#include <cuda_bf16.h>

#include <flashinfer/attention/decode.cuh>
#include <flashinfer/attention/default_decode_params.cuh>
#include <flashinfer/attention/default_prefill_params.cuh>
#include <flashinfer/attention/prefill.cuh>
#include <flashinfer/attention/scheduler.cuh>
#include <flashinfer/attention/variants.cuh>
#include <memory>

// Not unnamed: nvcc takes it for FlashInfer's.
namespace reference {

using namespace flashinfer;

using Element = __nv_bfloat16;
using Variant = DefaultAttention<false, false, false, false>;
using DecodeParams = BatchDecodeParams<Element, Element, Element, int32_t>;
using PrefillParams = BatchPrefillPagedParams<Element, Element, Element, int32_t>;
constexpr auto kPosition = PosEncodingMode::kNone;
constexpr size_t kFloatBytes = size_t{512} << 20, kIntBytes = size_t{64} << 20;

// The wrapper's workspaces.
struct Workspace {
  char *floats, *ints, *pinned;

  Workspace() {
    FLASHINFER_CHECK(cudaMalloc(&floats, kFloatBytes) == cudaSuccess && cudaMalloc(&ints, kIntBytes) == cudaSuccess &&
                         cudaMallocHost(&pinned, kIntBytes) == cudaSuccess,
                     "no memory for workspaces");
  }
  ~Workspace() {
    cudaFree(floats);
    cudaFree(ints);
    cudaFreeHost(pinned);
  }
};

struct Shape {
  int32_t rows, heads, kv_heads, page_size;
};

struct Attention {
  Shape shape;
  bool prefill;
  Workspace workspace;
  DecodePlanInfo decode_plan;
  PrefillPlanInfo prefill_plan;
};

template <class T>
T* at(char* base, int64_t offset) {
  return reinterpret_cast<T*>(base + offset);
}

cudaError_t plan_decode(Attention& a, int32_t* page_begin, cudaStream_t stream) {
  DISPATCH_GQA_GROUP_SIZE(a.shape.heads / a.shape.kv_heads, GROUP_SIZE, {
    auto estimate =
        BatchDecodeWithPagedKVCacheWorkEstimationDispatched<GROUP_SIZE, DP_HEAD_DIM, kPosition, Variant, DecodeParams>;
    return DecodePlan<DP_HEAD_DIM, kPosition, Variant, DecodeParams>(
        a.workspace.floats, kFloatBytes, a.workspace.ints, a.workspace.pinned, kIntBytes, a.decode_plan, page_begin,
        a.shape.rows, a.shape.heads, a.shape.page_size, false, stream, estimate);
  });
  return cudaSuccess;
}

cudaError_t plan_prefill(Attention& a, int32_t* query_begin, int32_t* page_begin, cudaStream_t stream) {
  return PrefillPlan<int32_t>(a.workspace.floats, kFloatBytes, a.workspace.ints, a.workspace.pinned, kIntBytes,
                              a.prefill_plan, query_begin, page_begin, a.shape.rows, a.shape.rows, a.shape.heads,
                              a.shape.kv_heads, DP_HEAD_DIM, DP_HEAD_DIM, a.shape.page_size, false, sizeof(Element), -1,
                              -1, false, 0, stream);
}

// The operands of one layer. `pool` is [page][K, V][kv head][token][DP_HEAD_DIM], a cache in FlashInfer's layout "HND".
struct Layer {
  Element *q, *pool, *out;
  int32_t *query_begin, *page_begin, *pages, *last_page_tokens;
  int64_t q_stride;
  float scale;
};

paged_kv_t<Element, int32_t> paged_kv(const Shape& shape, const Layer& layer) {
  const int64_t head = int64_t{shape.page_size} * DP_HEAD_DIM, value = shape.kv_heads * head;
  const int64_t strides[] = {2 * value, head, DP_HEAD_DIM};
  return {static_cast<uint32_t>(shape.kv_heads),
          static_cast<uint32_t>(shape.page_size),
          DP_HEAD_DIM,
          static_cast<uint32_t>(shape.rows),
          QKVLayout::kHND,
          layer.pool,
          layer.pool + value,
          strides,
          layer.pages,
          layer.page_begin,
          layer.last_page_tokens};
}

cudaError_t run_decode(Attention& a, const Layer& layer, cudaStream_t stream) {
  const DecodePlanInfo& plan = a.decode_plan;
  DecodeParams params(layer.q, nullptr, paged_kv(a.shape, layer), layer.out, nullptr, nullptr, a.shape.heads,
                      layer.q_stride, DP_HEAD_DIM, -1, 0.0f, layer.scale, 1.0f, 1e4f);
  params.padded_batch_size = plan.padded_batch_size;
  params.request_indices = at<int32_t>(a.workspace.ints, plan.request_indices_offset);
  params.kv_tile_indices = at<int32_t>(a.workspace.ints, plan.kv_tile_indices_offset);
  params.o_indptr = at<int32_t>(a.workspace.ints, plan.o_indptr_offset);
  params.kv_chunk_size_ptr = at<int32_t>(a.workspace.ints, plan.kv_chunk_size_ptr_offset);
  Element* values = plan.split_kv ? at<Element>(a.workspace.floats, plan.v_offset) : nullptr;
  float* lse = plan.split_kv ? at<float>(a.workspace.floats, plan.s_offset) : nullptr;
  return BatchDecodeWithPagedKVCacheDispatched<DP_HEAD_DIM, kPosition, Variant>(params, values, lse, true, stream);
}

cudaError_t run_prefill(Attention& a, const Layer& layer, cudaStream_t stream) {
  const PrefillPlanInfo& plan = a.prefill_plan;
  PrefillParams params(layer.q, paged_kv(a.shape, layer), nullptr, layer.query_begin, nullptr, nullptr, layer.out,
                       nullptr, nullptr, a.shape.heads, layer.q_stride, DP_HEAD_DIM, -1, 0.0f, layer.scale, 1.0f, 1e4f);
  params.padded_batch_size = plan.padded_batch_size;
  params.max_total_num_rows = plan.total_num_rows;
  params.request_indices = at<int32_t>(a.workspace.ints, plan.request_indices_offset);
  params.qo_tile_indices = at<int32_t>(a.workspace.ints, plan.qo_tile_indices_offset);
  params.kv_tile_indices = at<int32_t>(a.workspace.ints, plan.kv_tile_indices_offset);
  params.o_indptr = at<int32_t>(a.workspace.ints, plan.o_indptr_offset);
  params.kv_chunk_size_ptr = at<int32_t>(a.workspace.ints, plan.kv_chunk_size_ptr_offset);
  params.merge_indptr = at<int32_t>(a.workspace.ints, plan.merge_indptr_offset);
  Element* values = plan.split_kv ? at<Element>(a.workspace.floats, plan.v_offset) : nullptr;
  float* lse = plan.split_kv ? at<float>(a.workspace.floats, plan.s_offset) : nullptr;
  DISPATCH_CTA_TILE_Q(plan.cta_tile_q, CTA_TILE_Q, {
    return BatchPrefillWithPagedKVCacheDispatched<CTA_TILE_Q, DP_HEAD_DIM, DP_HEAD_DIM, kPosition, false,
                                                  MaskMode::kNone, Variant, PrefillParams>(params, values, lse, true,
                                                                                           stream);
  });
  return cudaSuccess;
}

}  // namespace reference

extern "C" {

void* flashinfer_create(bool prefill, int32_t rows, int32_t heads, int32_t kv_heads, int32_t page_size) {
  return new reference::Attention{{rows, heads, kv_heads, page_size}, prefill, {}, {}, {}};
}

void flashinfer_destroy(void* attention) { delete static_cast<reference::Attention*>(attention); }

// Arrays of rows + 1 on the host: each row's first query, and first of its pages.
int flashinfer_plan(void* attention, int32_t* query_begin, int32_t* page_begin, cudaStream_t stream) {
  auto& a = *static_cast<reference::Attention*>(attention);
  return a.prefill ? reference::plan_prefill(a, query_begin, page_begin, stream)
                   : reference::plan_decode(a, page_begin, stream);
}

int flashinfer_run(void* attention, const reference::Layer* layer, cudaStream_t stream) {
  auto& a = *static_cast<reference::Attention*>(attention);
  return a.prefill ? reference::run_prefill(a, *layer, stream) : reference::run_decode(a, *layer, stream);
}
}
