// The slow lane of the CPU engine: threads that play the link to host memory, and attention that waits for it. Host
// memory is both sides of it here, so this shows what is computed and when, and saves no memory.
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstring>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "common/exact.hpp"
#include "common/scheduler.hpp"
#include "host/workspace.hpp"

extern "C" {
void dp_attention_pass(dp::StepBuffers* step, int row, const int32_t* table, int context, int begin, int end,
                       const float* qkv, const void* pool, dp::Workspace* workspace, void* carried, float* out);
size_t dp_carried_bytes();
}

namespace dp {
namespace {

int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

// A thread that does the lists of a queue: copy(item) for each of their blocks.
template <class Copy>
class Mover {
 public:
  Mover(BlockQueue& queue, Copy copy) : queue_(queue), copy_(copy), thread_([this] { run(); }) {}
  ~Mover() {
    {
      const std::lock_guard lock(mutex_);
      stopped_ = true;
    }
    heard_.notify_one();
    thread_.join();
  }
  Mover(const Mover&) = delete;
  Mover& operator=(const Mover&) = delete;

  // A list was published.
  void wake() {
    {
      const std::lock_guard lock(mutex_);
    }
    heard_.notify_one();
  }

  // When the list of a ticket, one of the last, had ended.
  int64_t ended_at(uint32_t ticket) const { return glance(ended_at_[ticket % BlockQueue::kPlaces]); }
  uint64_t copied() const { return glance(copied_); }
  uint64_t copy_ns() const { return glance(copy_ns_); }

 private:
  void run() {
    for (uint32_t ticket = 1;; ++ticket) {
      {
        std::unique_lock lock(mutex_);
        heard_.wait(lock, [&] { return stopped_ || includes(observe(queue_.published), ticket); });
        if (stopped_) return;
      }
      const int64_t begin = now_ns();
      const int count = queue_.count_of(ticket);
      for (int i = 0; i < count; ++i) copy_(queue_.items_of(ticket)[i]);
      const int64_t end = now_ns();
      show(ended_at_[ticket % BlockQueue::kPlaces], end);
      show(copied_, copied_ + static_cast<uint64_t>(count));
      show(copy_ns_, copy_ns_ + static_cast<uint64_t>(end - begin));
      arrive(queue_, ticket, 1);
    }
  }

  BlockQueue& queue_;
  Copy copy_;
  std::mutex mutex_;
  std::condition_variable heard_;
  bool stopped_ = false;
  int64_t ended_at_[BlockQueue::kPlaces] = {};
  uint64_t copied_ = 0, copy_ns_ = 0;
  std::thread thread_;
};

// An element of a KV block as a float.
float widened(const std::byte* block, int64_t i) {
  if constexpr (cfg::kDType == DType::fp32) return reinterpret_cast<const float*>(block)[i];
  if constexpr (cfg::kDType == DType::fp16) return static_cast<float>(reinterpret_cast<const _Float16*>(block)[i]);
  return float_of(uint32_t{reinterpret_cast<const uint16_t*>(block)[i]} << 16);
}

class SlowLane {
 public:
  // `pools` [kRecallLayers]: the KV of the layers that may be in host memory.
  SlowLane(RecallMemory& memory, StepBuffers& step, void* const* pools) : memory_(memory), step_(step) {
    for (int layer = 0; layer < kRecallLayers; ++layer) pool_[layer] = static_cast<std::byte*>(pools[layer]);
  }

  // Before the scheduler is called for the lane, and after.
  void end_step() {
    if (step_.rows == 0) return;
    memory_.meter = {static_cast<uint64_t>(now_ns() - begun_), static_cast<uint64_t>(stalled_), recalls_.copied(),
                     recalls_.copy_ns()};
  }
  void begin_step() {
    departures_.wake();
    begun_ = now_ns();
    stalled_ = 0;
    step_.attention[kFull] = {static_cast<uint32_t>(Route::kHost), cfg::kSplitTokens, 0, 0, 0, 0};
  }

  // Attention of the step in the `layer`-th of these layers, once rotated and appended. False as long as blocks are on
  // their way: the caller comes back with the same arguments.
  bool attend(int layer, const float* qkv, Workspace& workspace, float* out) {
    const int rows = static_cast<int>(step_.rows);
    if (!open_) {
      open_ = true;
      begin_list();
      for (int r = 0; r < rows; ++r) choose_or_bring(r, layer, qkv);
      publish_list();
      from_ = 0, to_ = rows;
    }
    for (;;) {
      if (!includes(observe(memory_.recalls.ended), ticket_)) return false;
      stalled_ += most<int64_t>(0, recalls_.ended_at(ticket_) - published_);
      for (int r = from_; r < to_; ++r) {
        Pass& pass = passes_[r];
        const int end = least(pass.begin + kPassTokens, pass.context);
        dp_attention_pass(&step_, r, pass.table, pass.context, pass.begin, pass.chooses ? pass.context : end, qkv,
                          pool_[layer], &workspace, carried_.data(), out);
        pass.begin = pass.chooses ? pass.context : end;
      }
      for (from_ = 0; from_ < rows && passes_[from_].begin == passes_[from_].context;) ++from_;
      if (from_ == rows) return open_ = false, true;
      to_ = from_ + 1;
      begin_list();
      bring_pass(from_, layer);
      publish_list();
    }
  }

 private:
  static constexpr int kPassTokens = kStagedBlocks * cfg::kPageSize;
  static_assert(kPassTokens % cfg::kSplitTokens == 0, "slots for a split: raise offload.selection or target.kv_budget");
  static constexpr int64_t kKeyElements = int64_t{cfg::kPageSize} * cfg::kHeadDim;  // of the first KV head

  // Of a batch row in a layer: the keys that it attends to, of which those from `begin` on are to come.
  struct Pass {
    const int32_t* table;
    int context, begin;
    bool chooses;
  };

  void begin_list() {
    ticket_ = memory_.recalls.published + 1;
    // Lists end in their order, and nothing but this lane publishes them.
    while (!includes(observe(memory_.recalls.ended), ticket_ - BlockQueue::kPlaces)) std::this_thread::yield();
    count_ = 0;
  }

  // A list of nothing is none: those before it have ended.
  void publish_list() {
    published_ = now_ns();
    if (count_ == 0) {
      ticket_ = memory_.recalls.published;
      return;
    }
    memory_.recalls.count_of(ticket_) = count_;
    publish(memory_.recalls.published, ticket_);
    recalls_.wake();
  }

  void choose_or_bring(int r, int layer, const float* qkv) {
    SlowRow& row = row_of(r);
    const int first = step_.query_begin[r];
    const bool chooses = row.sparse != 0;
    passes_[r] = {step_.table[kFull][step_.row_slot[r]], step_.context[r], 0, chooses};
    if (!chooses) return bring_pass(r, layer);
    const float* query = qkv + int64_t{first} * (cfg::kHeads + 2 * cfg::kKvHeads) * cfg::kHeadDim;
    score(row, layer, query);
    SerialTeam team;
    const int n = choose(team, row.pages, [&](int i) { return score_[i]; }, work_);
    const int misses = place(team, row.layer[layer], n, static_cast<uint32_t>(step_.step), work_,
                             [&](int i, int32_t page, int slot) { recall(row, layer, count_ + i, page, slot); });
    row.chosen += static_cast<uint32_t>(n);
    row.missed += static_cast<uint32_t>(misses);
    count_ += misses;
    const int entries = tabulate(team, row, row.layer[layer], n, work_, table_[r]);
    passes_[r].table = table_[r];
    passes_[r].context = (entries - row.pages) * cfg::kPageSize + step_.context[r];
  }

  void bring_pass(int r, int layer) {
    SlowRow& row = row_of(r);
    const int first = passes_[r].begin / cfg::kPageSize;
    SerialTeam team;
    const int misses =
        bring(team, row, layer, first, least(first + kStagedBlocks, row.pages), static_cast<uint32_t>(step_.step),
              work_, [&](int i, int32_t page, int slot) { recall(row, layer, count_ + i, page, slot); });
    count_ += misses;
  }

  void recall(SlowRow& row, int layer, int at, int32_t page, int slot) {
    memory_.recalls.items_of(ticket_)[at] = {host_block(layer, row.host[page]),
                                             pool_block(layer, row.slot[kPinnedSlots + slot], cfg::kPages[kFull])};
    row.recalled_with = ticket_;
  }

  // By what a query's product with a key of a block can come to, added up over the query heads of the first KV head.
  void score(const SlowRow& row, int layer, const float* query) {
    const int n = candidates(row.pages);
#pragma omp parallel for schedule(static)
    for (int i = 0; i < n; ++i) {
      const float* low = &summary_[static_cast<size_t>(host_block(layer, row.host[cfg::kSinkBlocks + i])) * kSummary];
      const float* high = low + cfg::kHeadDim;
      float sum = 0.0F;
      for (int d = 0; d < cfg::kGqaRatio * cfg::kHeadDim; ++d) {
        const float a = query[d] * low[d % cfg::kHeadDim], b = query[d] * high[d % cfg::kHeadDim];
        sum += a > b ? a : b;
      }
      score_[i] = ranked(sum);
    }
  }

  // Of each channel the least and the greatest of a block's keys, both halfway to their mean.
  void summarise(const std::byte* block, float* summary) {
    for (int d = 0; d < cfg::kHeadDim; ++d) {
      float low = widened(block, d), high = low, sum = 0.0F;
      for (int64_t i = d; i < kKeyElements; i += cfg::kHeadDim) {
        const float key = widened(block, i);
        low = key < low ? key : low;
        high = key > high ? key : high;
        sum += key;
      }
      summary[d] = (low + sum / cfg::kPageSize) / 2;
      summary[cfg::kHeadDim + d] = (high + sum / cfg::kPageSize) / 2;
    }
  }

  SlowRow& row_of(int r) { return memory_.row[step_.row_slot[r]]; }
  std::byte* in_pool(int32_t block) const {
    return pool_[block / cfg::kPages[kFull]] + static_cast<size_t>(block % cfg::kPages[kFull]) * kBlockBytes;
  }
  std::byte* in_host(int32_t block) const { return host_.get() + static_cast<size_t>(block) * kBlockBytes; }

  void come(Transfer item) { std::memcpy(in_pool(item.to), in_host(item.from), kBlockBytes); }
  void go(Transfer item) {
    std::memcpy(in_host(item.to), in_pool(item.from), kBlockBytes);
    if (cfg::kSparseBlocks > 0) summarise(in_host(item.to), &summary_[static_cast<size_t>(item.to) * kSummary]);
  }

  struct alignas(64) Line {
    std::byte byte[64];
  };
  struct Come {
    SlowLane* lane;
    void operator()(Transfer item) const { lane->come(item); }
  };
  struct Go {
    SlowLane* lane;
    void operator()(Transfer item) const { lane->go(item); }
  };
  static constexpr size_t kSummary = 2 * cfg::kHeadDim;
  static constexpr size_t kHostBlocks = size_t{kHostPages} * kRecallLayers;

  RecallMemory& memory_;
  StepBuffers& step_;
  std::byte* pool_[kRecallLayers];
  // Not touched before it is used, so that it takes no memory.
  std::unique_ptr<std::byte[]> host_{new std::byte[kHostBlocks * kBlockBytes]};
  std::unique_ptr<float[]> summary_{new float[cfg::kSparseBlocks > 0 ? kHostBlocks* kSummary : 1]};
  std::vector<Line> carried_ = std::vector<Line>(dp_carried_bytes() / sizeof(Line) + 1);
  RecallWork work_;
  uint32_t score_[cfg::kPagesPerRow];
  int32_t table_[kSlowRows][cfg::kPagesPerRow];
  Pass passes_[kSlowRows];
  bool open_ = false;
  int from_ = 0, to_ = 0, count_ = 0;
  uint32_t ticket_ = 0;
  int64_t begun_ = 0, stalled_ = 0, published_ = 0;
  Mover<Come> recalls_{memory_.recalls, Come{this}};
  Mover<Go> departures_{memory_.departures, Go{this}};
};

SlowLane& slow_lane_of(void* handle) { return *static_cast<SlowLane*>(handle); }

}  // namespace
}  // namespace dp

extern "C" {

// Of an engine (host/engine.cpp), whose slow lane's step buffers and pools these are.
void* dp_slow_create(void* recall, dp::StepBuffers* step, void* const* pools) {
  return new dp::SlowLane(*static_cast<dp::RecallMemory*>(recall), *step, pools);
}
void dp_slow_destroy(void* handle) { delete &dp::slow_lane_of(handle); }
void dp_slow_begin_step(void* handle) { dp::slow_lane_of(handle).begin_step(); }
void dp_slow_end_step(void* handle) { dp::slow_lane_of(handle).end_step(); }

// 0 as long as blocks are on their way.
int dp_slow_attend(void* handle, int layer, const float* qkv, dp::Workspace* workspace, float* out) {
  return dp::slow_lane_of(handle).attend(layer, qkv, *workspace, out) ? 1 : 0;
}

}  // extern "C"
