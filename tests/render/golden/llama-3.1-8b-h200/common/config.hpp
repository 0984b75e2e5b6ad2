// common/config.hpp.j2 for the deployment "llama-3.1-8b-h200": llama in bf16, GQA ratio 4,
// head_dim 128, pages of 16 tokens, on h200.
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
constexpr int kHidden = 4096;  // model.shape.hidden
constexpr int kHeads = 32;  // model.shape.heads
constexpr int kKvHeads = 8;  // model.shape.kv_heads
constexpr int kGqaRatio = 4;  // attention.gqa_ratio
constexpr int kHeadDim = 128;  // model.shape.head_dim
constexpr int kIntermediate = 14336;  // model.shape.intermediate
constexpr int kVocab = 128256;  // model.shape.vocab
constexpr float kNormEps = 1e-05f;  // model.shape.norm_eps
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
DP_TABLE constexpr int kLayers[kGroups] = {32};

// Paging. A block is one page in one layer: K then V, each [kv head][token][head_dim].
constexpr int kPageSize = 16;  // attention.page_size
DP_TABLE constexpr int kPages[kGroups] = {56000};  // target.kv_budget
constexpr int kPagesPerRow = 8192;  // model.max_context
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
constexpr Prefill kPrefill = Prefill::wgmma;

// Scheduler
constexpr int kMaxBatch = 256;  // scheduler.max_batch
constexpr int kSlowRows = 0;
constexpr int kPrefillChunk = 2048;  // scheduler.prefill_chunk
constexpr int kMaxStepTokens = 2048;
constexpr int kMaxSamples = 256;
// Step programs, by kind, each kind's in order of size.
struct StepProgram {
  bool mixed;
  int rows, tokens;
};
constexpr int kPrograms = 34;
DP_TABLE constexpr StepProgram kProgram[kPrograms] = {
    {false, 1, 1},
    {false, 8, 8},
    {false, 32, 32},
    {false, 64, 64},
    {false, 96, 96},
    {false, 128, 128},
    {false, 160, 160},
    {false, 192, 192},
    {false, 224, 224},
    {false, 256, 256},
    {true, 64, 64},
    {true, 128, 128},
    {true, 192, 192},
    {true, 256, 256},
    {true, 256, 320},
    {true, 256, 384},
    {true, 256, 448},
    {true, 256, 512},
    {true, 256, 576},
    {true, 256, 640},
    {true, 256, 704},
    {true, 256, 768},
    {true, 256, 832},
    {true, 256, 896},
    {true, 256, 960},
    {true, 256, 1024},
    {true, 256, 1152},
    {true, 256, 1280},
    {true, 256, 1408},
    {true, 256, 1536},
    {true, 256, 1664},
    {true, 256, 1792},
    {true, 256, 1920},
    {true, 256, 2048},
};
constexpr int kMaxRequests = 1280;
constexpr int kMaxQueuedRequests = 1024;  // scheduler.max_queued_requests
constexpr int64_t kMaxQueuedTokens = 1048576;  // scheduler.max_queued_tokens
constexpr int kMaxContext = 131072;  // model.max_context
constexpr uint64_t kParkNs = 0;  // scheduler.park_after; 0: never
constexpr bool kPrefixReuse = true;  // scheduler.prefix_reuse
constexpr int kHistoryPage = 256;
constexpr int kHistoryPages = 136192;

// Rings
constexpr int kRings = 1;  // nic.rings
constexpr uint32_t kRequestSlots = 1024;  // nic.slots
constexpr uint32_t kTokenSlots = 4096;
constexpr uint32_t kArenaWords = 524288;

}  // namespace cfg
}  // namespace dp
