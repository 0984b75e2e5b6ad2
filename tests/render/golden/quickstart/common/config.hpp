// common/config.hpp.j2 for the deployment "quickstart": gemma3 in bf16, GQA ratio 4,
// head_dim 256, pages of 16 tokens, on cpu.
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
constexpr int kHidden = 640;  // model.shape.hidden
constexpr int kHeads = 4;  // model.shape.heads
constexpr int kKvHeads = 1;  // model.shape.kv_heads
constexpr int kGqaRatio = 4;  // attention.gqa_ratio
constexpr int kHeadDim = 256;  // model.shape.head_dim
constexpr int kIntermediate = 2048;  // model.shape.intermediate
constexpr int kVocab = 262144;  // model.shape.vocab
constexpr float kNormEps = 1e-06f;  // model.shape.norm_eps
constexpr float kNormOffset = 1.0f;
constexpr float kAttentionScale = 0.0625f;  // model.shape.attention_scale
constexpr float kAttentionSoftcap = 0.0f;  // model.shape.attention_softcap; 0: none
constexpr float kEmbedScale = 25.298222f;
constexpr bool kQkNorm = true;
enum class Activation { silu, gelu_tanh };
constexpr Activation kActivation = Activation::gelu_tanh;

// Layer groups: layers that share a block table. A window of 0 is full attention.
constexpr int kGroups = 2;
DP_TABLE constexpr int kWindow[kGroups] = {0, 512};  // model.shape.sliding_window
DP_TABLE constexpr int kLayers[kGroups] = {3, 15};

// Paging. A block is one page in one layer: K then V, each [kv head][token][head_dim].
constexpr int kPageSize = 16;  // attention.page_size
DP_TABLE constexpr int kPages[kGroups] = {4096, 392};  // target.kv_budget
constexpr int kPagesPerRow = 512;  // model.max_context
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
constexpr Prefill kPrefill = Prefill::tokens;

// Scheduler
constexpr int kMaxBatch = 8;  // scheduler.max_batch
constexpr int kSlowRows = 0;
constexpr int kPrefillChunk = 256;  // scheduler.prefill_chunk
constexpr int kMaxStepTokens = 256;
constexpr int kMaxSamples = 64;
// Step programs, by kind, each kind's in order of size.
struct StepProgram {
  bool mixed;
  int rows, tokens;
};
constexpr int kPrograms = 2;
DP_TABLE constexpr StepProgram kProgram[kPrograms] = {
    {false, 8, 8},
    {true, 8, 256},
};
constexpr int kMaxRequests = 1032;
constexpr int kMaxQueuedRequests = 1024;  // scheduler.max_queued_requests
constexpr int64_t kMaxQueuedTokens = 1048576;  // scheduler.max_queued_tokens
constexpr int kMaxContext = 8192;  // model.max_context
constexpr uint64_t kParkNs = 0;  // scheduler.park_after; 0: never
constexpr bool kPrefixReuse = true;  // scheduler.prefix_reuse
constexpr int kHistoryPage = 256;
constexpr int kHistoryPages = 5376;

// Rings
constexpr int kRings = 1;  // nic.rings
constexpr uint32_t kRequestSlots = 1024;  // nic.slots
constexpr uint32_t kTokenSlots = 4096;
constexpr uint32_t kArenaWords = 65536;

}  // namespace cfg
}  // namespace dp
