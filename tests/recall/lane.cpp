// A slow row beside an engine's kernels, as a library: threads copy its blocks, each layer chooses, recalls and waits.
#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <memory>
#include <thread>

#include "common/recall.hpp"

namespace {

using namespace dp;

constexpr size_t kBlockBytes = size_t{2} * cfg::kKvHeads * cfg::kHeadDim * cfg::kPageSize * cfg::kElementBytes;

void nap() { std::this_thread::sleep_for(std::chrono::microseconds(20)); }

constexpr int kPoolPages = cfg::kPages[kFull];

struct LoneRow {
  std::byte* pool[kRecallLayers];
  std::byte* host;
  SlowRow row;
  RecallWork work;
  BlockQueue recalls, departures;
  std::jthread threads[2];

  std::byte* in_pool(int32_t block) {
    return pool[block / kPoolPages] + static_cast<size_t>(block % kPoolPages) * kBlockBytes;
  }
  std::byte* in_host(int32_t block) { return host + static_cast<size_t>(block) * kBlockBytes; }

  void copy(std::stop_token stopped, bool leaving) {
    BlockQueue& queue = leaving ? departures : recalls;
    for (uint32_t ticket = 1; !stopped.stop_requested();) {
      if (!includes(observe(queue.published), ticket)) {
        nap();
        continue;
      }
      for (int i = 0; i < queue.count_of(ticket); ++i) {
        const auto [from, to] = queue.items_of(ticket)[i];
        leaving ? std::memcpy(in_host(to), in_pool(from), kBlockBytes)
                : std::memcpy(in_pool(to), in_host(from), kBlockBytes);
      }
      arrive(queue, ticket++, 1);
    }
  }
};

LoneRow& lane_of(void* handle) { return *static_cast<LoneRow*>(handle); }

}  // namespace

extern "C" {

// `pools` [kRecallLayers] and `host` outlive the lane; `slots` [kCacheBlocks] are the row's pages of the pools.
void* lane_create(void* const* pools, void* host, const int32_t* slots) {
  auto lane = std::make_unique<LoneRow>();
  for (int layer = 0; layer < kRecallLayers; ++layer) lane->pool[layer] = static_cast<std::byte*>(pools[layer]);
  lane->host = static_cast<std::byte*>(host);
  std::copy_n(slots, cfg::kCacheBlocks, lane->row.slot);
  SerialTeam team;
  start_row(team, lane->row);
  for (int i = 0; i < 2; ++i) {
    lane->threads[i] = std::jthread([&lane = *lane, i](std::stop_token stopped) { lane.copy(stopped, i == 1); });
  }
  return lane.release();
}

void lane_destroy(void* handle) { delete &lane_of(handle); }

// The row's next page, once it may have one; returns its page of the pools.
int32_t lane_begin_page(void* handle) {
  LoneRow& lane = lane_of(handle);
  while (lane.row.pages == pages_allowed(lane.row, observe(lane.departures.ended))) nap();
  return lane.row.slot[pinned_slot(lane.row.pages++)];
}

// The row's next page is full, and leaves.
void lane_send_page(void* handle, int32_t host_page) {
  LoneRow& lane = lane_of(handle);
  const uint32_t ticket = lane.departures.published + 1;
  while (!includes(observe(lane.departures.ended), ticket - 1)) nap();
  SerialTeam team;
  send_page(team, lane.row, host_page, ticket, kPoolPages, lane.departures.items_of(ticket));
  lane.departures.count_of(ticket) = kRecallLayers;
  publish(lane.departures.published, ticket);
}

// What the row's token attends to in the layer, by `score` [candidates], is on the card, and `view` is the step that
// `step` is for this layer's attention. Leaves the blocks recalled in `misses` and the row's pages attended to in
// `pages`, and returns how many these are.
int lane_recall(void* handle, int layer, const uint32_t* score, const StepBuffers* step, StepBuffers* view,
                int32_t* pages, int32_t* misses) {
  LoneRow& lane = lane_of(handle);
  SlowRow& row = lane.row;
  LayerCache& cache = row.layer[layer];
  SerialTeam team;
  const uint32_t ticket = lane.recalls.published + 1;
  const int chosen = choose(team, row.pages, [&](int i) { return score[i]; }, lane.work);
  Transfer* blocks = lane.recalls.items_of(ticket);
  *misses = place(team, cache, chosen, ticket, lane.work, [&](int i, int32_t page, int slot) {
    blocks[i] = {host_block(layer, row.host[page]), pool_block(layer, row.slot[kPinnedSlots + slot], kPoolPages)};
  });
  lane.recalls.count_of(ticket) = *misses;
  publish(lane.recalls.published, ticket);
  while (!includes(observe(lane.recalls.ended), ticket)) nap();
  view->rows = view->tokens = 1;
  view->query_begin[0] = 0, view->query_begin[1] = 1;
  view->row_slot[0] = 0;
  const int count = tabulate(team, row, cache, chosen, lane.work, view->table[kFull][0]);
  const int last = step->context[0] - (row.pages - 1) * cfg::kPageSize;
  view->context[0] = (count - 1) * cfg::kPageSize + last;
  const int sinks = least(row.pages, cfg::kSinkBlocks), recent = first_recent(row.pages);
  for (int i = 0; i < count; ++i) {
    pages[i] = i < sinks ? i : i < sinks + chosen ? lane.work.chosen[i - sinks] : recent + i - sinks - chosen;
  }
  return count;
}
}
