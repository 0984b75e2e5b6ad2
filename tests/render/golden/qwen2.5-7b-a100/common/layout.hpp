// common/layout.hpp.j2 for the deployment "qwen2.5-7b-a100": qwen2 in bf16, GQA ratio 7,
// head_dim 128, pages of 16 tokens, on a100.
// Every struct that crosses a boundary, from the table in dualpace/plan/abi.py.
#pragma once
#include <cstddef>
#include <cstdint>

#include "common/config.hpp"

namespace dp {

constexpr uint64_t kLayoutHash = 0xe2956b148f47cc60;
constexpr uint64_t kMagic = 0x656361506c617544;
constexpr int kMaxStopTokens = 32;
constexpr int kMaxBias = 300;
constexpr int kMaxTopLogprobs = 20;

enum class Finish : uint32_t { kNone = 0, kStop = 1, kLength = 2, kAbort = 3, kError = 4, kEngineGone = 5 };

enum class Lane : uint32_t { kFast = 0, kSlow = 1 };

enum class StepKind : uint32_t { kIdle = 0, kDecode = 1, kMixed = 2 };

enum class Route : uint32_t { kAuto = 0, kSplit = 1, kWorkqueue = 2, kFlashinfer = 3, kHost = 4 };

enum class RecordType : uint32_t { kSubmit = 1, kAbort = 2, kFinish = 3 };

// A request: its parameters and tokens are a span of the arena.
struct alignas(64) SubmitRecord {
  uint32_t type;  // RecordType::kSubmit
  uint32_t arena_begin;  // word of the arena at which the span begins; it does not wrap
  uint32_t arena_words;  // length of the span, in words
  uint8_t pad_12[4];
  uint64_t tag;  // the frontend's name for the request
  uint8_t reserved[32];
  uint64_t flag;  // epoch << 32 | index + 1 of this record, stored last; nothing else says it is there
};
static_assert(offsetof(SubmitRecord, type) == 0);
static_assert(offsetof(SubmitRecord, arena_begin) == 4);
static_assert(offsetof(SubmitRecord, arena_words) == 8);
static_assert(offsetof(SubmitRecord, tag) == 16);
static_assert(offsetof(SubmitRecord, reserved) == 24);
static_assert(offsetof(SubmitRecord, flag) == 56);
static_assert(sizeof(SubmitRecord) == 64);

// Ends a request early; one that has ended is left alone.
struct alignas(64) AbortRecord {
  uint32_t type;  // RecordType::kAbort, or kFinish: it ends with Finish::kStop
  uint32_t index;  // index of the request's submit record
  uint8_t reserved[48];
  uint64_t flag;  // epoch << 32 | index + 1 of this record, stored last; nothing else says it is there
};
static_assert(offsetof(AbortRecord, type) == 0);
static_assert(offsetof(AbortRecord, index) == 4);
static_assert(offsetof(AbortRecord, reserved) == 8);
static_assert(offsetof(AbortRecord, flag) == 56);
static_assert(sizeof(AbortRecord) == 64);

// Head of an arena span; stop ids, ids with a bias, their biases (f32), prompt, keys of its pages (u64) follow.
struct alignas(8) RequestParams {
  uint64_t seed;
  uint32_t prompt_tokens;
  uint32_t stop_count;
  uint32_t bias_count;
  uint32_t max_tokens;  // most tokens to generate; 0: the prompt is computed and no more
  uint32_t min_tokens;  // stop ids are not sampled before
  uint32_t priority;  // higher is served first, to 255
  uint32_t top_k;  // 0: off
  float top_p;
  float min_p;
  float temperature;  // 0: greedy
  float repetition_penalty;
  float presence_penalty;
  float frequency_penalty;
  uint32_t logprobs;  // 0: none; k + 1: the token's and those of the k most probable
  uint32_t prompt_logprobs;  // likewise for the tokens of the prompt, from its second on
  uint32_t sparse;  // 1: tokens may attend to chosen blocks, if most of the KV is in host memory
};
static_assert(offsetof(RequestParams, seed) == 0);
static_assert(offsetof(RequestParams, prompt_tokens) == 8);
static_assert(offsetof(RequestParams, stop_count) == 12);
static_assert(offsetof(RequestParams, bias_count) == 16);
static_assert(offsetof(RequestParams, max_tokens) == 20);
static_assert(offsetof(RequestParams, min_tokens) == 24);
static_assert(offsetof(RequestParams, priority) == 28);
static_assert(offsetof(RequestParams, top_k) == 32);
static_assert(offsetof(RequestParams, top_p) == 36);
static_assert(offsetof(RequestParams, min_p) == 40);
static_assert(offsetof(RequestParams, temperature) == 44);
static_assert(offsetof(RequestParams, repetition_penalty) == 48);
static_assert(offsetof(RequestParams, presence_penalty) == 52);
static_assert(offsetof(RequestParams, frequency_penalty) == 56);
static_assert(offsetof(RequestParams, logprobs) == 60);
static_assert(offsetof(RequestParams, prompt_logprobs) == 64);
static_assert(offsetof(RequestParams, sparse) == 68);
static_assert(sizeof(RequestParams) == 72);

// One event of a request: a token, its end, or both. Tokens of the prompt come first, in order.
struct alignas(64) TokenRecord {
  uint64_t tag;
  uint32_t index;  // of the token among those generated, or in the prompt
  int32_t token;  // -1: none
  float logprob;  // of the token under the model alone, 0 unless it was asked for
  uint32_t finish;  // Finish
  uint32_t prompt_tokens;
  uint32_t cached_tokens;  // prompt tokens whose KV was reused
  uint32_t top_count;  // entries of Ring::tops that belong to this record
  uint32_t of_prompt;  // 1: a token of the prompt, for its logprob
  uint32_t sparse_tokens;  // generated so far by attention that left blocks out
  uint8_t reserved[12];
  uint64_t flag;  // epoch << 32 | index + 1 of this record, stored last; nothing else says it is there
};
static_assert(offsetof(TokenRecord, tag) == 0);
static_assert(offsetof(TokenRecord, index) == 8);
static_assert(offsetof(TokenRecord, token) == 12);
static_assert(offsetof(TokenRecord, logprob) == 16);
static_assert(offsetof(TokenRecord, finish) == 20);
static_assert(offsetof(TokenRecord, prompt_tokens) == 24);
static_assert(offsetof(TokenRecord, cached_tokens) == 28);
static_assert(offsetof(TokenRecord, top_count) == 32);
static_assert(offsetof(TokenRecord, of_prompt) == 36);
static_assert(offsetof(TokenRecord, sparse_tokens) == 40);
static_assert(offsetof(TokenRecord, reserved) == 44);
static_assert(offsetof(TokenRecord, flag) == 56);
static_assert(sizeof(TokenRecord) == 64);

// The most probable tokens where one was sampled, best first.
struct alignas(32) TopLogprobs {
  int32_t token[20];  // -1: no more can be drawn
  float logprob[20];
};
static_assert(offsetof(TopLogprobs, token) == 0);
static_assert(offsetof(TopLogprobs, logprob) == 80);
static_assert(sizeof(TopLogprobs) == 160);

// Totals since the engine started.
struct alignas(8) Counters {
  uint64_t accepted;  // requests
  uint64_t finished;  // requests that ended by a stop id or by length
  uint64_t aborted;  // requests
  uint64_t failed;  // requests that ended with an error
  uint64_t prefilled;  // tokens of prompts and recomputed rows run through the model
  uint64_t generated;  // tokens
  uint64_t preempted;  // rows that gave up their pages
  uint64_t nonfinite;  // sampled rows with a logit that was NaN or infinite
  uint64_t malformed;  // records refused
  uint64_t reused;  // tokens whose KV an admitted request found
  uint64_t evicted;  // cached pages given to others
  uint64_t exhausted;  // steps in which a request waited for pages
  uint64_t epochs;  // claims and ends of claims of a ring
  uint64_t attention_bytes;  // of KV that decode attention read, in all layers
  uint64_t attention_merge_bytes;  // of partial results that it wrote and read again
  uint64_t attention_items;  // its tasks, in all layers
  uint64_t attention_launches;  // of its kernels, in all layers; those of routes not taken apart
  uint64_t split_steps;  // layer groups in a step that went the split route
  uint64_t workqueue_steps;  // likewise, the workqueue route
  uint64_t flashinfer_steps;  // likewise, the flashinfer route
  uint64_t host_steps;  // likewise, the CPU engine's
  uint64_t slow_steps;  // forward passes of rows with KV in host memory
  uint64_t slow_step_ns;  // that these took
  uint64_t recall_stall_ns;  // that these waited for blocks from host memory
  uint64_t link_waits;  // steps in which a request waited for the link to host memory
  uint64_t recall_hits;  // blocks that a layer's tokens chose and that were on the card
  uint64_t recall_misses;  // blocks brought from host memory for a layer
  uint64_t recalled_bytes;  // of these
  uint64_t sent_bytes;  // of blocks that left for host memory
};
static_assert(offsetof(Counters, accepted) == 0);
static_assert(offsetof(Counters, finished) == 8);
static_assert(offsetof(Counters, aborted) == 16);
static_assert(offsetof(Counters, failed) == 24);
static_assert(offsetof(Counters, prefilled) == 32);
static_assert(offsetof(Counters, generated) == 40);
static_assert(offsetof(Counters, preempted) == 48);
static_assert(offsetof(Counters, nonfinite) == 56);
static_assert(offsetof(Counters, malformed) == 64);
static_assert(offsetof(Counters, reused) == 72);
static_assert(offsetof(Counters, evicted) == 80);
static_assert(offsetof(Counters, exhausted) == 88);
static_assert(offsetof(Counters, epochs) == 96);
static_assert(offsetof(Counters, attention_bytes) == 104);
static_assert(offsetof(Counters, attention_merge_bytes) == 112);
static_assert(offsetof(Counters, attention_items) == 120);
static_assert(offsetof(Counters, attention_launches) == 128);
static_assert(offsetof(Counters, split_steps) == 136);
static_assert(offsetof(Counters, workqueue_steps) == 144);
static_assert(offsetof(Counters, flashinfer_steps) == 152);
static_assert(offsetof(Counters, host_steps) == 160);
static_assert(offsetof(Counters, slow_steps) == 168);
static_assert(offsetof(Counters, slow_step_ns) == 176);
static_assert(offsetof(Counters, recall_stall_ns) == 184);
static_assert(offsetof(Counters, link_waits) == 192);
static_assert(offsetof(Counters, recall_hits) == 200);
static_assert(offsetof(Counters, recall_misses) == 208);
static_assert(offsetof(Counters, recalled_bytes) == 216);
static_assert(offsetof(Counters, sent_bytes) == 224);
static_assert(sizeof(Counters) == 232);

// What decode attention of a layer group does in a step, in each of its layers.
struct alignas(8) AttentionWork {
  uint32_t route;  // Route
  uint32_t split_tokens;  // keys of a split; 0 where nothing is split alike
  uint32_t items;  // tasks
  uint32_t launches;  // kernels that work
  uint64_t bytes;  // of KV read
  uint64_t merge_bytes;  // of partial results written and read
};
static_assert(offsetof(AttentionWork, route) == 0);
static_assert(offsetof(AttentionWork, split_tokens) == 4);
static_assert(offsetof(AttentionWork, items) == 8);
static_assert(offsetof(AttentionWork, launches) == 12);
static_assert(offsetof(AttentionWork, bytes) == 16);
static_assert(offsetof(AttentionWork, merge_bytes) == 24);
static_assert(sizeof(AttentionWork) == 32);

// What an engine says of itself; it alone writes it. Pages are those of the scarcest layer group.
struct alignas(64) EngineStatus {
  uint64_t heartbeat;  // moves while the scheduler's loop does, and between a host's operations
  uint64_t steps;  // forward passes
  uint32_t ready;
  uint32_t stopped;
  uint32_t running;  // rows
  uint32_t waiting;  // requests
  uint64_t waiting_tokens;
  uint32_t free_pages;  // that no row holds
  uint32_t cached_pages;  // of these, with contents that a prompt may find
  uint32_t total_pages;
  uint32_t slow_rows;  // rows with KV in host memory, among those running
  uint32_t host_pages;  // pages in host memory that rows have or are promised
  uint32_t total_host_pages;
  uint32_t epoch;  // of the engine: one more than of the engine before it
  uint8_t pad_68[4];
  Counters counters;
  uint8_t pad_304[16];
};
static_assert(offsetof(EngineStatus, heartbeat) == 0);
static_assert(offsetof(EngineStatus, steps) == 8);
static_assert(offsetof(EngineStatus, ready) == 16);
static_assert(offsetof(EngineStatus, stopped) == 20);
static_assert(offsetof(EngineStatus, running) == 24);
static_assert(offsetof(EngineStatus, waiting) == 28);
static_assert(offsetof(EngineStatus, waiting_tokens) == 32);
static_assert(offsetof(EngineStatus, free_pages) == 40);
static_assert(offsetof(EngineStatus, cached_pages) == 44);
static_assert(offsetof(EngineStatus, total_pages) == 48);
static_assert(offsetof(EngineStatus, slow_rows) == 52);
static_assert(offsetof(EngineStatus, host_pages) == 56);
static_assert(offsetof(EngineStatus, total_host_pages) == 60);
static_assert(offsetof(EngineStatus, epoch) == 64);
static_assert(offsetof(EngineStatus, counters) == 72);
static_assert(sizeof(EngineStatus) == 320);

// Where a frontend wakes an engine that has parked: nothing of it runs but a process that waits here.
struct alignas(64) Doorbell {
  uint32_t parked;  // 1: by a device that parks; 0: by a frontend that has written. A futex
  uint8_t pad_4[60];
};
static_assert(offsetof(Doorbell, parked) == 0);
static_assert(sizeof(Doorbell) == 64);

// Indices of a ring's three queues. Each counts records read, modulo 2^32, from 0 in every epoch.
struct alignas(64) RingControl {
  uint32_t epoch;  // by the frontend: odd from claim to close, even from then on; by the engine if it dies
  uint8_t pad_4[60];
  uint32_t token_read;  // by the frontend
  uint8_t pad_68[60];
  uint32_t seen_epoch;  // by the engine: the epoch that the two counts below belong to
  uint32_t submit_read;  // by the engine; the arena spans of these records are free
  uint32_t abort_read;  // by the engine
  uint8_t pad_140[4];
  uint64_t token_written;  // by the engine: epoch << 32 | token records that are whole, for who looks from afar
  uint8_t pad_152[40];
};
static_assert(offsetof(RingControl, epoch) == 0);
static_assert(offsetof(RingControl, token_read) == 64);
static_assert(offsetof(RingControl, seen_epoch) == 128);
static_assert(offsetof(RingControl, submit_read) == 132);
static_assert(offsetof(RingControl, abort_read) == 136);
static_assert(offsetof(RingControl, token_written) == 144);
static_assert(sizeof(RingControl) == 192);

// All that one frontend shares with the engine.
struct alignas(64) Ring {
  RingControl control;
  SubmitRecord submits[cfg::kRequestSlots];
  AbortRecord aborts[cfg::kRequestSlots];
  TokenRecord tokens[cfg::kTokenSlots];
  TopLogprobs tops[cfg::kTokenSlots];  // of the token record of the same slot
  uint32_t arena[cfg::kArenaWords];
};
static_assert(offsetof(Ring, control) == 0);
static_assert(offsetof(Ring, submits) == 192);
static_assert(offsetof(Ring, aborts) == 65728);
static_assert(offsetof(Ring, tokens) == 131264);
static_assert(offsetof(Ring, tops) == 393408);
static_assert(offsetof(Ring, arena) == 1048768);
static_assert(sizeof(Ring) == 1573056);

// What a mapping is; written before the file gets its name.
struct alignas(64) MemoryHeader {
  uint64_t magic;
  uint64_t layout;  // kLayoutHash of the writer
  uint64_t bytes;  // of the whole mapping
  uint32_t rings;
  uint8_t pad_28[36];
};
static_assert(offsetof(MemoryHeader, magic) == 0);
static_assert(offsetof(MemoryHeader, layout) == 8);
static_assert(offsetof(MemoryHeader, bytes) == 16);
static_assert(offsetof(MemoryHeader, rings) == 24);
static_assert(sizeof(MemoryHeader) == 64);

// The whole mapping.
struct alignas(64) RingMemory {
  MemoryHeader header;
  EngineStatus status;
  Doorbell doorbell;
  Ring rings[cfg::kRings];
};
static_assert(offsetof(RingMemory, header) == 0);
static_assert(offsetof(RingMemory, status) == 64);
static_assert(offsetof(RingMemory, doorbell) == 384);
static_assert(offsetof(RingMemory, rings) == 448);
static_assert(sizeof(RingMemory) == 1573504);

// One step's inputs, its block tables and what was sampled. Row: of the batch; row slot: of the tables.
struct alignas(64) StepBuffers {
  uint64_t step;
  uint32_t lane;  // Lane: whose steps these are, set once
  uint32_t kind;  // StepKind
  uint32_t rows;
  uint32_t tokens;
  uint32_t samples;  // tokens whose logits are looked at
  uint32_t scored;  // of these, the first: what follows each is the prompt's own token, none is drawn
  uint32_t program;  // the least of the plan's step programs that holds the step
  uint8_t pad_36[28];
  int32_t token[cfg::kMaxStepTokens];
  int32_t position[cfg::kMaxStepTokens];
  int32_t token_row[cfg::kMaxStepTokens];  // row of each token
  int32_t slot[cfg::kGroups][cfg::kMaxStepTokens];  // page * kPageSize + offset at which the token's KV goes
  int32_t row_slot[cfg::kMaxBatch];
  int32_t query_begin[cfg::kMaxBatch + 1];  // first token of each row, then their count
  uint8_t pad_33860[60];
  int32_t context[cfg::kMaxBatch];  // KV length of each row after the step
  int32_t table[cfg::kGroups][cfg::kMaxBatch][cfg::kPagesPerRow];  // pages by row slot and position / kPageSize; -1: none
  AttentionWork attention[cfg::kGroups];  // by attention, which reads its route there
  uint8_t pad_1083040[32];
  int32_t sample_index[cfg::kMaxSamples];  // token whose logits are sampled
  int32_t sample_slot[cfg::kMaxSamples];  // row slot of each sample
  int32_t sampled[cfg::kMaxSamples];  // by the sampler: the token, -1 for logits with a NaN
  float logprob[cfg::kMaxSamples];  // by the sampler
  TopLogprobs top[cfg::kMaxSamples];  // by the sampler
};
static_assert(offsetof(StepBuffers, step) == 0);
static_assert(offsetof(StepBuffers, lane) == 8);
static_assert(offsetof(StepBuffers, kind) == 12);
static_assert(offsetof(StepBuffers, rows) == 16);
static_assert(offsetof(StepBuffers, tokens) == 20);
static_assert(offsetof(StepBuffers, samples) == 24);
static_assert(offsetof(StepBuffers, scored) == 28);
static_assert(offsetof(StepBuffers, program) == 32);
static_assert(offsetof(StepBuffers, token) == 64);
static_assert(offsetof(StepBuffers, position) == 8256);
static_assert(offsetof(StepBuffers, token_row) == 16448);
static_assert(offsetof(StepBuffers, slot) == 24640);
static_assert(offsetof(StepBuffers, row_slot) == 32832);
static_assert(offsetof(StepBuffers, query_begin) == 33344);
static_assert(offsetof(StepBuffers, context) == 33920);
static_assert(offsetof(StepBuffers, table) == 34432);
static_assert(offsetof(StepBuffers, attention) == 1083008);
static_assert(offsetof(StepBuffers, sample_index) == 1083072);
static_assert(offsetof(StepBuffers, sample_slot) == 1083584);
static_assert(offsetof(StepBuffers, sampled) == 1084096);
static_assert(offsetof(StepBuffers, logprob) == 1084608);
static_assert(offsetof(StepBuffers, top) == 1085120);
static_assert(sizeof(StepBuffers) == 1105600);

// What the host leaves with the device, so that it launches steps by itself.
struct alignas(64) Drive {
  uint64_t program[cfg::kPrograms];  // the executable graph of each step program
  uint8_t pad_240[16];
  uint32_t stop;  // by the host: begin no more steps
  uint8_t pad_260[60];
  uint32_t error;  // by the device: why it could not launch a step, a cudaError_t
  uint32_t parked;  // by the device: it has launched none, and waits to be started again
  uint8_t pad_328[56];
};
static_assert(offsetof(Drive, program) == 0);
static_assert(offsetof(Drive, stop) == 256);
static_assert(offsetof(Drive, error) == 320);
static_assert(offsetof(Drive, parked) == 324);
static_assert(sizeof(Drive) == 384);

// Blocks of the host pool that a row's token attends to in a layer, for a CPU worker.
struct alignas(64) WorkItem {
  uint64_t flag;  // generation of the row's life << 32 | ticket; 0 while nobody is to work on it or it is written
  uint32_t row;  // whose query it is
  uint32_t layer;  // of those in host memory
  uint32_t blocks;
  int32_t block[cfg::kItemBlocks];  // by number in the host pool, each full of tokens
  uint8_t pad_276[44];
};
static_assert(offsetof(WorkItem, flag) == 0);
static_assert(offsetof(WorkItem, row) == 8);
static_assert(offsetof(WorkItem, layer) == 12);
static_assert(offsetof(WorkItem, blocks) == 16);
static_assert(offsetof(WorkItem, block) == 20);
static_assert(sizeof(WorkItem) == 320);

// Attention to the blocks of an item alone, as every producer of partial results leaves it.
struct alignas(64) WorkAnswer {
  uint64_t flag;  // the item's
  uint64_t nanoseconds;  // that the worker took
  uint8_t pad_16[48];
  float lse[cfg::kHeads];  // natural logarithm of the sum of exponentials
  uint8_t pad_176[16];
  float out[cfg::kHeads][cfg::kHeadDim];  // normalised
};
static_assert(offsetof(WorkAnswer, flag) == 0);
static_assert(offsetof(WorkAnswer, nanoseconds) == 8);
static_assert(offsetof(WorkAnswer, lse) == 64);
static_assert(offsetof(WorkAnswer, out) == 192);
static_assert(sizeof(WorkAnswer) == 14528);

}  // namespace dp
