// The tasks of attention done by FlashInfer: the same lists, operands and results as those of dp_attention.
//
// FlashInfer's device functions find their work through arrays that its planner fills on the host. Here each task is
// shown to them as a plan of its own, for one request that has the task's keys, so no plan leaves the registers.
#include <flashinfer/attention/decode.cuh>
#include <flashinfer/attention/prefill.cuh>

#include "cuda/attention_merge.cuh"
#include "cuda/attention_prefetch.cuh"
#include "cuda/ptx.cuh"

namespace dp {
namespace {

static_assert(cfg::kElementBytes == 2 && kGroupSlices == 1);

// What both kernels ask of an attention variant: keys [kv_len - window_left - 1, kv_len) of one query token, no mask.
// Scores are in units of log2 once they are transformed and multiplied by sm_scale_log2.
struct Variant : flashinfer::AttentionVariantBase {
  uint32_t qo_len = 1;
  static constexpr float kScale = cfg::kAttentionScale * kLog2E;
  static constexpr float sm_scale_log2 = cfg::kAttentionSoftcap > 0 ? 1.0f : kScale;
  uint32_t kv_len;
  uint32_t window_left;

  template <class Params>
  __device__ Variant(const Params& params, uint32_t, const uint8_t*)
      : kv_len(params.kv_len), window_left(params.window_left) {}

  template <class Params>
  __device__ float LogitsTransform(const Params&, float score, uint32_t, uint32_t, uint32_t, uint32_t, uint32_t) {
    return cfg::kAttentionSoftcap > 0 ? soft_capped(score * kScale) : score;
  }
};

// decode.cuh, for CUDA cores: a thread has a vector of a head, and every head its threads. Block shape and stages are
// those of BatchDecodeWithPagedKVCacheDispatched.
template <class T>
class CudaCores {
  static constexpr uint32_t kVectorSize = kVector > cfg::kHeadDim / 32 ? kVector : cfg::kHeadDim / 32;
  static constexpr uint32_t kX = cfg::kHeadDim / kVectorSize;
  static constexpr uint32_t kY = cfg::kGqaRatio;
  static constexpr uint32_t kZ = kX * kY < 128 ? 128 / (kX * kY) : 1;
  static constexpr uint32_t kStages = 2;
  static constexpr uint32_t kTile = cfg::kGqaRatio == 1 ? 4 : 1;

  // An array of a plan for one request, all of whose entries are zero.
  struct Zeros {
    __device__ int32_t operator[](uint32_t) const { return 0; }
    __device__ int32_t operator*() const { return 0; }
  };
  struct PageSize {
    __device__ void divmod(uint32_t key, uint32_t& page, uint32_t& offset) const {
      page = key / cfg::kPageSize;
      offset = key % cfg::kPageSize;
    }
    // FlashInfer multiplies a request's first page by this. A task may begin within a page: `begin` is a key already.
    friend __device__ uint32_t operator*(int32_t begin, PageSize) { return static_cast<uint32_t>(begin); }
  };
  struct Bounds {
    int32_t begin;  // key
    int32_t pages;
    __device__ int32_t operator[](uint32_t i) const { return i == 0 ? begin : pages; }
  };
  struct PagedKv {
    static constexpr uint32_t batch_size = 1;
    static constexpr const int32_t* rope_pos_offset = nullptr;
    const T* k_data;
    const T* v_data;
    const int32_t* table;
    Bounds indptr;
    uint32_t keys;
    PageSize page_size;

    __device__ uint32_t get_length(uint32_t) const { return keys; }
    __device__ size_t protective_get_kv_offset(int32_t page, uint32_t, uint32_t offset, uint32_t, int32_t pages) const {
      return page < pages ? key_offset(table[page], 0, static_cast<int>(offset)) : 0;
    }
  };

  struct Params {
    using DTypeQ = T;
    using DTypeKV = T;
    using DTypeO = float;
    using IdType = int32_t;
    static constexpr const bool* block_valid_mask = nullptr;
    static constexpr uint32_t padded_batch_size = 1;
    static constexpr uint32_t num_qo_heads = cfg::kGqaRatio;
    static constexpr uint32_t q_stride_n = 0;
    static constexpr uint32_t q_stride_h = cfg::kHeadDim;
    static constexpr bool partition_kv = false;
    const T* q;
    PagedKv paged_kv;
    float* o;
    float* lse;
    Zeros request_indices, kv_tile_indices, kv_chunk_size_ptr;
    uint32_t kv_len, window_left;
  };

 public:
  static constexpr int kThreads = kX * kY * kZ;
  static constexpr size_t kStageBytes = 2 * kStages * kTile * kY * kZ * cfg::kHeadDim * sizeof(T);
  struct Shared {
    alignas(16) uint8_t stages[kStageBytes];
    alignas(16) size_t offsets[kTile * kThreads];
  };
  // CTAs that registers leave room for on an SM: FlashInfer's own kernel has as few, and stages room for fewer if a KV
  // head has one query head.
  static constexpr int kCtas = least(1024 / kThreads, (200 << 10) / static_cast<int>(sizeof(Shared)));

  // Attention of `heads` to the keys [begin, end) of `table`, those of one KV head: `out` is normalised, `lse` in units
  // of log2.
  static __device__ void attend(const T* heads, const T* keys, const int32_t* table, int begin, int end, float* out,
                                float* lse, Shared& shared) {
    const int pages = (end + cfg::kPageSize - 1) / cfg::kPageSize;
    const auto size = static_cast<uint32_t>(end - begin);
    const Params params = {
        heads, {keys, keys + kValueOffset, table, {begin, pages}, size, {}}, out, lse, {}, {}, {}, size, size};
    flashinfer::BatchDecodeWithPagedKVCacheDevice<flashinfer::PosEncodingMode::kNone, kStages, kTile, kVectorSize, kX,
                                                  kY, kZ, Variant>(params, reinterpret_cast<uint8_t*>(&shared), 0, 0,
                                                                   threadIdx.x % kX, threadIdx.x / kX % kY,
                                                                   threadIdx.x / (kX * kY));
  }
};

// prefill.cuh, for tensor cores: the heads are rows of a tile of 16, padded, and the warps share the keys.
template <class T>
class TensorCores {
  static constexpr uint32_t kTileHeads = 16;
  static constexpr uint32_t kWarps = flashinfer::get_num_warps_kv(kTileHeads);
  // FlashInfer takes as many keys of a warp as let two CTAs share an SM; that is this on sm_80 and sm_90.
  static constexpr uint32_t kKeyTiles = 256 / cfg::kHeadDim;
  using Traits = flashinfer::KernelTraits<flashinfer::MaskMode::kNone, kTileHeads, 1, kKeyTiles, cfg::kHeadDim / 16,
                                          cfg::kHeadDim / 16, 1, kWarps, flashinfer::PosEncodingMode::kNone, T, T,
                                          float, float, int32_t, Variant>;
  static_assert(cfg::kGqaRatio <= kTileHeads && !Traits::IsInvalid());

  // Its constructor from a number is the host's alone. What it holds is a divisor of CCCL, which the device can make,
  // and the number.
  static __device__ flashinfer::uint_fastdiv divisor(uint32_t value) {
    struct Parts {
      cuda::fast_mod_div<uint32_t> divisor;
      uint32_t value;
    };
    static_assert(sizeof(Parts) == sizeof(flashinfer::uint_fastdiv));
    return __builtin_bit_cast(flashinfer::uint_fastdiv, Parts{cuda::fast_mod_div<uint32_t>(value), value});
  }

  struct Params {
    using DTypeQ = T;
    using DTypeKV = T;
    using DTypeO = float;
    using IdType = int32_t;
    flashinfer::paged_kv_t<T, int32_t> paged_kv;
    flashinfer::uint_fastdiv group_size;
    T* q;
    float* o;
    float* lse;
    int32_t *request_indices, *qo_tile_indices, *kv_tile_indices, *q_indptr, *o_indptr, *kv_chunk_size_ptr;
    bool* block_valid_mask;
    uint32_t q_stride_n, q_stride_h;
    bool partition_kv;
    uint32_t kv_len, window_left;
  };

 public:
  static constexpr int kThreads = Traits::NUM_THREADS;
  static constexpr int kCtas = 2;  // for which FlashInfer chooses its tiles
  using Shared = typename Traits::SharedStorage;

  static __device__ void attend(const T* heads, const T* keys, const int32_t* table, int begin, int end, float* out,
                                float* lse, Shared& shared) {
    Params params;
    int32_t plan[2] = {0, (end + cfg::kPageSize - 1) / cfg::kPageSize};
    params.paged_kv.page_size = divisor(cfg::kPageSize);
    params.paged_kv.batch_size = 1;
    params.paged_kv.stride_page = 2 * kValueOffset;
    params.paged_kv.stride_n = cfg::kHeadDim;
    params.paged_kv.k_data = const_cast<T*>(keys);
    params.paged_kv.v_data = const_cast<T*>(keys) + kValueOffset;
    params.paged_kv.indices = const_cast<int32_t*>(table);
    params.paged_kv.indptr = plan;
    params.group_size = divisor(cfg::kGqaRatio);
    params.q = const_cast<T*>(heads);
    params.o = out;
    params.lse = lse;
    params.request_indices = params.qo_tile_indices = params.kv_tile_indices = plan;
    params.q_indptr = params.o_indptr = plan;
    params.kv_chunk_size_ptr = plan + 1;
    params.block_valid_mask = nullptr;
    params.q_stride_n = 0;
    params.q_stride_h = cfg::kHeadDim;
    params.partition_kv = false;
    params.kv_len = static_cast<uint32_t>(end);
    params.window_left = static_cast<uint32_t>(end - begin - 1);
    flashinfer::BatchPrefillWithPagedKVCacheDevice<Traits>(params, shared, dim3(threadIdx.x % 32, 0, threadIdx.x / 32),
                                                           0, 0, 1);
  }
};

using Decode = std::conditional_t<cfg::kFlashInferPrefill, TensorCores<Element>, CudaCores<Element>>;

struct Shared {
  Decode::Shared decode;
  Exchange<1, 0> exchange;  // FlashInfer's results are one part without padding
};
static_assert(sizeof(Shared) <= 99 << 10, "a CTA of any target has room for it");

}  // namespace

extern "C" {
__constant__ int64_t dp_attention_flashinfer_shared_bytes = sizeof(Shared);
}

// What dp_attention does, for one that is given its operands.
extern "C" __global__ void __launch_bounds__(Decode::kThreads, Decode::kCtas)
    dp_attention_flashinfer(const StepBuffers* step, int group, AttentionTasks* tasks_of_group, const Element* qkv,
                            const Element* pool, PartialOut* partial, PartialLse* lse, Element* out) {
  extern __shared__ __align__(16) unsigned char memory[];
  auto& shared = *reinterpret_cast<Shared*>(memory);
  AttentionTasks& tasks = tasks_of_group[group];
  const int32_t* tables = step->table[group][0];
  const int shares = tasks.flashinfer_shares * kSlices;
  launch_dependents();
  if (blockIdx.x < shares) prefetch_first(tasks.task[tasks.share[blockIdx.x]], tables, pool);
  wait_dependency();
  for (int share = blockIdx.x; share < shares; share += gridDim.x) {
    Finisher<Decode::kThreads, 1, 0> finish({tasks, partial, lse, out}, shared.exchange);
    for (int index = tasks.share[share]; index < tasks.share[share + kSlices]; ++index) {
      const AttentionTask task = tasks.task[index];
      Decode::attend(qkv + int64_t{task.token} * kQkvColumns + first_head_of(task.slice) * cfg::kHeadDim,
                     pool + key_offset(0, kv_head_of(task.slice), 0), tables + task.row_slot * cfg::kPagesPerRow,
                     task.begin, task.end, &shared.exchange.value[0][0][0], shared.exchange.max[0], shared.decode);
      if (threadIdx.x < kSliceHeads) shared.exchange.sum[0][threadIdx.x] = 1;
      __syncthreads();
      finish.take(index, task);
    }
    finish.leave();
  }
}

}  // namespace dp
