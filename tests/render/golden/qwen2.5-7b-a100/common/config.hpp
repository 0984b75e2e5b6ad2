// common/config.hpp.j2 for the deployment "qwen2.5-7b-a100": qwen2 in bf16, GQA ratio 7,
// head_dim 128, pages of 16 tokens, on a100.
// The constants of the deployment, the only place where the plan enters the code. A comment behind one names the key of
// the spec that sets it: when a compile fails on a line that uses the constant, the error names the key too.
#pragma once
#include <cstdint>

// A constant array that code may index at run time. For nvcc it has to live on the device. On the host it is each file's
// own: as an inline variable it would be one for all libraries of a process, whichever plan they are for.
#ifdef __CUDACC__
#define DP_TABLE static __device__
#else
#define DP_TABLE static
#endif

namespace dp {

enum class DType { bf16, fp16, fp32 };
enum class Prefill { tokens, mma, wgmma };

namespace cfg {

// Model
constexpr DType kDType = DType::bf16;  // model.dtype
constexpr int kElementBytes = 2;
constexpr int kHidden = 3584;  // model.shape.hidden
constexpr int kHeads = 28;  // model.shape.heads
constexpr int kKvHeads = 4;  // model.shape.kv_heads
constexpr int kGqaRatio = 7;  // attention.gqa_ratio
constexpr int kHeadDim = 128;  // model.shape.head_dim
constexpr int kIntermediate = 18944;  // model.shape.intermediate
constexpr int kVocab = 152064;  // model.shape.vocab
constexpr float kNormEps = 1e-06f;  // model.shape.norm_eps
constexpr float kNormOffset = 0.0f;
constexpr float kAttentionScale = 0.088388346f;  // model.shape.attention_scale
constexpr float kAttentionSoftcap = 0.0f;  // model.shape.attention_softcap; 0: none
constexpr float kEmbedScale = 1.0f;
constexpr bool kQkNorm = false;
enum class Activation { silu, gelu_tanh };
constexpr Activation kActivation = Activation::silu;

// Layer groups: layers that share a block table. A window of 0 is full attention.
constexpr int kGroups = 1;
DP_TABLE constexpr int kWindow[kGroups] = {0};  // model.shape.sliding_window
DP_TABLE constexpr int kLayers[kGroups] = {28};

// Paging. A block is one page in one layer: K then V, each [kv head][token][head_dim].
constexpr int kPageSize = 16;  // attention.page_size
DP_TABLE constexpr int kPages[kGroups] = {65901};  // target.kv_budget
constexpr int kPagesPerRow = 2048;  // model.max_context
// Of a slow row in each layer: slots on the card, blocks that a token attends to (0: all), and the first and last ones
// that are always among them.
constexpr int kCacheBlocks = 0;
constexpr int kSparseBlocks = 0;  // offload.selection.blocks
constexpr int kSinkBlocks = 0;
constexpr int kRecentBlocks = 0;
constexpr int kHostPages = 0;  // offload.host_budget
constexpr int kSplitTokens = 256;
constexpr int kItemBlocks = 4 * kSplitTokens / kPageSize;
constexpr int kSpareTasks = 1024;
constexpr bool kFlashInferPrefill = false;  // attention.route
constexpr Prefill kPrefill = Prefill::mma;

// Scheduler
constexpr int kMaxBatch = 128;  // scheduler.max_batch
constexpr int kSlowRows = 0;
constexpr int kPrefillChunk = 2048;  // scheduler.prefill_chunk
constexpr int kMaxStepTokens = 2048;
constexpr int kMaxSamples = 128;
// Step programs, by kind, each kind's in order of size.
struct StepProgram {
  bool mixed;
  int rows, tokens;
};
constexpr int kPrograms = 30;
DP_TABLE constexpr StepProgram kProgram[kPrograms] = {
    {false, 1, 1},
    {false, 8, 8},
    {false, 32, 32},
    {false, 64, 64},
    {false, 96, 96},
    {false, 128, 128},
    {true, 64, 64},
    {true, 128, 128},
    {true, 128, 192},
    {true, 128, 256},
    {true, 128, 320},
    {true, 128, 384},
    {true, 128, 448},
    {true, 128, 512},
    {true, 128, 576},
    {true, 128, 640},
    {true, 128, 704},
    {true, 128, 768},
    {true, 128, 832},
    {true, 128, 896},
    {true, 128, 960},
    {true, 128, 1024},
    {true, 128, 1152},
    {true, 128, 1280},
    {true, 128, 1408},
    {true, 128, 1536},
    {true, 128, 1664},
    {true, 128, 1792},
    {true, 128, 1920},
    {true, 128, 2048},
};
constexpr int kMaxRequests = 1152;
constexpr int kMaxQueuedRequests = 1024;  // scheduler.max_queued_requests
constexpr int64_t kMaxQueuedTokens = 1048576;  // scheduler.max_queued_tokens
constexpr int kMaxContext = 32768;  // model.max_context
constexpr uint64_t kParkNs = 0;  // scheduler.park_after; 0: never
constexpr bool kPrefixReuse = true;  // scheduler.prefix_reuse
constexpr int kHistoryPage = 256;
constexpr int kHistoryPages = 21504;

// Rings
constexpr int kRings = 1;  // nic.rings
constexpr uint32_t kRequestSlots = 1024;  // nic.slots
constexpr uint32_t kTokenSlots = 4096;
constexpr uint32_t kArenaWords = 131072;

}  // namespace cfg
}  // namespace dp
