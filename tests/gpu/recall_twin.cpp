// What becomes of a slow row by common/recall.hpp on the host, for comparison with the device.
#include <algorithm>
#include <cstring>

#include "common/recall.hpp"

using namespace dp;

namespace {

SerialTeam team;
RecallWork work;
constexpr int kPoolPages = cfg::kPages[kFull];

}  // namespace

extern "C" {

size_t twin_row_bytes() { return sizeof(SlowRow); }
int twin_places() { return static_cast<int>(BlockQueue::kPlaces); }
int twin_most() { return sizeof(BlockQueue::item[0]) / sizeof(Transfer); }

void twin_start(SlowRow* row, const int32_t* slots) {
  std::memset(row, 0, sizeof *row);
  std::copy_n(slots, cfg::kCacheBlocks, row->slot);
  start_row(team, *row);
  row->sparse = 1;
}

// Begins the row's next page and returns its page of the pool.
int32_t twin_begin_page(SlowRow* row) { return row->slot[pinned_slot(row->pages++)]; }

// The row's next page leaves for page `host`, with these blocks.
void twin_send_page(SlowRow* row, int32_t host, uint32_t ticket, Transfer* blocks) {
  send_page(team, *row, host, ticket, kPoolPages, blocks);
}

// A row of so many pages that have all left, without any transfer.
void twin_assume(SlowRow* row, int pages, const int32_t* host) {
  row->pages = row->sent = pages;
  std::copy_n(host, pages, row->host);
}

// Whether the row's token chooses.
void twin_let_choose(SlowRow* row, int chooses) { row->sparse = chooses != 0 ? 1 : 0; }

int twin_candidates(const SlowRow* row) { return most(candidates(row->pages), 0); }

// What dp_choose does for one row; its table, the row's pages in the same order, and its part of the list. Returns how
// many blocks it attends to.
int twin_choose(SlowRow* row, int layer, const uint32_t* scores, uint32_t step, uint32_t ticket, Transfer* blocks,
                int32_t* misses, int32_t* table, int32_t* pages) {
  LayerCache& cache = row->layer[layer];
  const int chosen = choose(team, row->pages, [&](int i) { return scores[i]; }, work);
  *misses = place(team, cache, chosen, step, work, [&](int i, int32_t page, int slot) {
    blocks[i] = {host_block(layer, row->host[page]), pool_block(layer, row->slot[kPinnedSlots + slot], kPoolPages)};
  });
  row->chosen += static_cast<uint32_t>(chosen);
  row->missed += static_cast<uint32_t>(*misses);
  row->recalled_with = ticket;
  const int count = tabulate(team, *row, cache, chosen, work, table);
  const int sinks = least(row->pages, cfg::kSinkBlocks), recent = first_recent(row->pages);
  for (int i = 0; i < count; ++i) {
    pages[i] = i < sinks ? i : i < sinks + chosen ? work.chosen[i - sinks] : recent + i - sinks - chosen;
  }
  return count;
}
}
