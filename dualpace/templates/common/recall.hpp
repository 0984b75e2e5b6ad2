// Rows with KV in host memory: which blocks a token attends to in a layer, where on the card they are, and which of
// them have to be brought there.
//
// A slow row has slots on the card, pages of the pool. The first blocks of the row and the last ones have the same
// slots in all layers: the last ones take turns. Each other slot holds, in each layer by itself, a block that a token
// chose. Those have left for the host pool before they can be chosen, so a slot is taken from one without a word.
#pragma once
#include <cstdint>

#include "common/layout.hpp"
#include "common/pool.hpp"
#include "common/portable.hpp"
#include "common/team.hpp"
#include "common/transfer.hpp"

namespace dp {

// Where there is none of it, the types below are there all the same, with a place for one of each.
constexpr bool kOffload = cfg::kCacheBlocks > 0;

// The group whose layers' blocks may be in host memory.
constexpr int full_group() {
  int group = 0;
  while (group + 1 < cfg::kGroups && cfg::kWindow[group] != 0) ++group;
  return group;
}
constexpr int kFull = full_group();
constexpr int recall_layers() {
  int layers = 0;
  for (int g = 0; g < cfg::kGroups; ++g) layers += cfg::kWindow[g] == 0 ? cfg::kLayers[g] : 0;
  return layers;
}
static_assert(!kOffload || recall_layers() == cfg::kLayers[kFull], "KV in host memory is one layer group's");
constexpr int kRecallLayers = most(1, recall_layers());
constexpr int kSlowRows = most(1, cfg::kSlowRows), kHostPages = most(1, cfg::kHostPages);
constexpr int kRecentBlocks = most(1, cfg::kRecentBlocks);
constexpr int kPinnedSlots = cfg::kSinkBlocks + cfg::kRecentBlocks;
constexpr int kChoiceSlots = most(1, cfg::kCacheBlocks - kPinnedSlots);
static_assert(!kOffload || cfg::kCacheBlocks > kPinnedSlots, "a row has slots to bring blocks to");
// Blocks that a token may choose at a time, beside those that it always attends to.
constexpr int kChosen = cfg::kSparseBlocks > 0 ? cfg::kSparseBlocks - kPinnedSlots : kChoiceSlots;
static_assert(kChosen <= kChoiceSlots, "what a token chooses is on the card all at once");

// A list has what a layer's rows recall, or a page of each row in all layers. Lists of two steps may wait.
using BlockQueue =
    TransferQueue<power_of_two(2 * kRecallLayers), kSlowRows * most(kPinnedSlots + kChoiceSlots, kRecallLayers)>;

constexpr uint64_t kBlockBytes = uint64_t{2} * cfg::kKvHeads * cfg::kHeadDim * cfg::kPageSize * cfg::kElementBytes;

// Of a row in a layer: which of its pages have a slot among those for choices, numbered from 0.
struct LayerCache {
  int32_t slot[cfg::kPagesPerRow];  // by page; kNone
  int32_t page[kChoiceSlots];       // by slot; kNone
  uint32_t used[kChoiceSlots];      // by slot: the step of the last token that attended to it
};

// A slow row, from when it gets its slots until no transfer names any of its memory. Pages are numbered from the row's
// beginning.
struct SlowRow {
  int32_t pages;                              // begun
  int32_t sent;                               // of these, those that were told to leave
  uint32_t sent_with[kRecentBlocks];          // the tickets of the last of them, by page % kRecentBlocks
  uint32_t recalled_with;                     // the ticket of the row's last recalls
  uint32_t sparse;                            // its token in this step chooses; else all blocks are attended to
  uint32_t chosen, missed;                    // blocks of all layers, that had to be on the card, and to be brought
  int32_t slot[kPinnedSlots + kChoiceSlots];  // pages of the pool: of the first blocks, the last ones, the chosen ones
  int32_t host[cfg::kPagesPerRow];            // by page, of those that were sent
  // The scheduler's: the two counts as they were, and what a token misses, in 256ths of a block, since it decodes.
  uint32_t chosen_before, missed_before;
  bool decoded;
  uint64_t misses;
  LayerCache layer[kRecallLayers];
};

// By whoever steps the slow lane, before the scheduler is called for it.
struct LaneMeter {
  uint64_t step_ns, stall_ns;  // the last step from its beginning to its end, and how long of it the lane waited
  uint64_t copied, copy_ns;    // blocks recalled in all, and how long lists of them were being copied
};

// What the scheduler makes of it. Means of late; `misses` and `block_ns` in 256ths.
struct Pace {
  uint64_t misses;               // blocks that a token of a row which chooses brings back
  uint64_t block_ns;             // that the link takes for a block
  uint64_t shadow_ns, stall_ns;  // that a step computes, and waits
  uint64_t copied, copy_ns;      // as they were
};

// Slow rows by row slot: theirs are the first ones. Rows that have left keep their memory until no transfer names it.
struct RecallMemory {
  SlowRow row[kSlowRows];
  FreeList<kSlowRows> seats;  // row slots of no row
  bool drains[kSlowRows];     // its row has left
  int32_t draining;
  FreeList<kHostPages> host;
  uint32_t generation[kHostPages];           // lives of a page of the host pool that are over
  int32_t promised;                          // host pages that running rows may yet take
  uint32_t recalls_ended, departures_ended;  // as the scheduler saw them, once a call
  LaneMeter meter;
  Pace pace;
  alignas(64) BlockQueue recalls;
  alignas(64) BlockQueue departures;
};

// What a team shares while it sees to one row.
struct RecallWork {
  int32_t last;  // of items with equal keys of which some are taken, the last that is
  int32_t chosen[kChoiceSlots], missed[kChoiceSlots], victim[kChoiceSlots];
};

// Blocks by layer, in the pools of all layers that are in host memory, one behind the other; and by page there.
DP_FN constexpr int32_t pool_block(int layer, int32_t page, int pool_pages) { return layer * pool_pages + page; }
DP_FN constexpr int32_t host_block(int layer, int32_t page) { return page * kRecallLayers + layer; }

// The `k` of n items that have the largest keys, the first ones of those that have equal ones, in their order. Keys
// have so many bits, an even number.
template <class Team, class Key>
DP_FN void take_largest(Team& team, int n, int k, int bits, Key key, RecallWork& w, int32_t* taken) {
  constexpr int kCountBits = 21;
  static_assert(most(cfg::kPagesPerRow, kChoiceSlots) < 1 << kCountBits, "three counts are added up in a word");
  if (k == 0) return;
  // The least key that is taken is the largest that k items reach: two of its bits at a time, by counting those that
  // reach each of the three values above 0. Once it is no more than k, they are the ones.
  uint32_t limit = 0;
  int reach = n, above = 0;
  for (int shift = bits - 2; shift >= 0 && reach > k; shift -= 2) {
    const auto reached = [&](uint32_t x, uint32_t digit) { return uint64_t{x >= limit + (digit << shift) ? 1u : 0u}; };
    const uint64_t counts = team.reduce(
        n,
        [&](int i) {
          const uint32_t x = key(i);
          return reached(x, 1) | reached(x, 2) << kCountBits | reached(x, 3) << 2 * kCountBits;
        },
        Sum());
    uint32_t digit = 3;
    for (; digit > 0; --digit) {
      const int count = static_cast<int>(counts >> (digit - 1) * kCountBits & ((1u << kCountBits) - 1));
      if (count >= k) {
        reach = count;
        break;
      }
      above = count;
    }
    limit += digit << shift;
  }
  if (reach > k) {
    team.pick(
        n, [&](int i) { return key(i) == limit; },
        [&](int i, int before) {
          if (before + 1 == k - above) w.last = i;
        });
  }
  const int last = reach > k ? w.last : n;
  team.pick(
      n, [&](int i) { return key(i) > limit || (key(i) == limit && i <= last); },
      [&](int i, int before) { taken[before] = i; });
}

DP_FN constexpr int first_recent(int pages) { return most(cfg::kSinkBlocks, pages - cfg::kRecentBlocks); }

// Pages that a token of a row with `pages` pages may choose from, from kSinkBlocks on.
DP_FN constexpr int candidates(int pages) { return first_recent(pages) - cfg::kSinkBlocks; }

// Leaves the pages that a token attends to by `score` [candidates], and those chosen in RecallWork::chosen; returns
// how many of these there are.
template <class Team, class Score>
DP_FN int choose(Team& team, int pages, Score score, RecallWork& w) {
  const int n = candidates(pages), chosen = least(n, kChosen);
  take_largest(team, n, chosen, 32, score, w, w.chosen);
  team.each(chosen, [&](int i) { w.chosen[i] += cfg::kSinkBlocks; });
  team.sync();
  return chosen;
}

// The n pages in RecallWork::missed get the slots slot_of(i), which others may have had.
template <class Team, class SlotOf, class Miss>
DP_FN void give_slots(Team& team, LayerCache& cache, int n, uint32_t step, const RecallWork& w, SlotOf slot_of,
                      Miss miss) {
  team.each(n, [&](int i) {
    const int32_t page = w.missed[i], slot = slot_of(i), before = cache.page[slot];
    if (before != kNone) cache.slot[before] = kNone;
    cache.page[slot] = page;
    cache.slot[page] = slot;
    cache.used[slot] = step;
    miss(i, page, slot);
  });
  team.sync();
}

// Gives each of the n pages in RecallWork::chosen a slot in the layer, those that have none the slots that were used
// longest ago. miss(i, page, slot) for the i-th of these, whose block has to be brought there; returns how many.
template <class Team, class Miss>
DP_FN int place(Team& team, LayerCache& cache, int n, uint32_t step, RecallWork& w, Miss miss) {
  team.each(n, [&](int i) {
    const int32_t slot = cache.slot[w.chosen[i]];
    if (slot != kNone) cache.used[slot] = step;
  });
  const int misses = team.pick(
      n, [&](int i) { return cache.slot[w.chosen[i]] == kNone; },
      [&](int i, int before) { w.missed[before] = w.chosen[i]; });
  constexpr uint32_t kNever = 0xFFFF;
  const auto idle = [&](int slot) {
    return cache.page[slot] == kNone ? kNever : least(step - cache.used[slot], kNever);
  };
  take_largest(team, kChoiceSlots, misses, 16, idle, w, w.victim);
  give_slots(team, cache, misses, step, w, [&](int i) { return w.victim[i]; }, miss);
  return misses;
}

// The slot of one of the row's first or last pages.
DP_FN constexpr int pinned_slot(int32_t page) {
  return page < cfg::kSinkBlocks ? page : cfg::kSinkBlocks + (page - cfg::kSinkBlocks) % kRecentBlocks;
}

// Pages of the pool with the blocks that a token attends to in the layer, to `table` in the order of their positions:
// the first ones, the n in RecallWork::chosen, the last ones. Returns how many.
template <class Team>
DP_FN int tabulate(Team& team, const SlowRow& row, const LayerCache& cache, int n, const RecallWork& w,
                   int32_t* table) {
  const int sinks = least(row.pages, cfg::kSinkBlocks), recent = first_recent(row.pages);
  team.each(sinks, [&](int i) { table[i] = row.slot[pinned_slot(i)]; });
  team.each(n, [&](int i) { table[sinks + i] = row.slot[kPinnedSlots + cache.slot[w.chosen[i]]]; });
  team.each(most(0, row.pages - recent), [&](int i) { table[sinks + n + i] = row.slot[pinned_slot(recent + i)]; });
  return sinks + n + most(0, row.pages - recent);
}

// Where tokens that attend to all blocks have them. Of those that are neither first nor last, the first kKeptBlocks
// keep their slots; the others take turns in the rest, kStagedBlocks neighbours at a time: a pass. A pass is of whole
// splits of attention if there are slots for one.
constexpr int kSplitBlocks = most(1, cfg::kSplitTokens / cfg::kPageSize);
constexpr int kStagedBlocks = least(kChoiceSlots, most(kSplitBlocks, kChoiceSlots / 4 / kSplitBlocks * kSplitBlocks));
constexpr int kKeptBlocks = kChoiceSlots - kStagedBlocks;
DP_FN constexpr int kept_slot(int32_t page) {
  const int32_t nth = page - cfg::kSinkBlocks;
  return nth < kKeptBlocks ? nth : kKeptBlocks + (nth - kKeptBlocks) % kStagedBlocks;
}

// The page of the pool where tokens that attend to all blocks of a row with `pages` pages find one.
DP_FN inline int32_t exact_entry(const SlowRow& row, int32_t page, int32_t pages) {
  const bool pinned = page < cfg::kSinkBlocks || page >= first_recent(pages);
  return row.slot[pinned ? pinned_slot(page) : kPinnedSlots + kept_slot(page)];
}

// Has the pages from `first` to before `last`, kStagedBlocks at most, in those slots of the layer, but for the first
// and last ones of the row. miss(i, page, slot) for the i-th whose block has to be brought there; returns how many. A
// row whose tokens have chosen does not go back to this.
template <class Team, class Miss>
DP_FN int bring(Team& team, SlowRow& row, int layer, int first, int last, uint32_t step, RecallWork& w, Miss miss) {
  LayerCache& cache = row.layer[layer];
  const int from = most(first, cfg::kSinkBlocks), n = most(0, least(last, first_recent(row.pages)) - from);
  const int misses = team.pick(
      n, [&](int i) { return cache.page[kept_slot(from + i)] != from + i; },
      [&](int i, int before) { w.missed[before] = from + i; });
  give_slots(team, cache, misses, step, w, [&](int i) { return kept_slot(w.missed[i]); }, miss);
  if (team.leader()) {
    row.chosen += static_cast<uint32_t>(n);
    row.missed += static_cast<uint32_t>(misses);
  }
  return misses;
}

// A row that has its slots, and nothing in them.
template <class Team>
DP_FN void start_row(Team& team, SlowRow& row) {
  team.each(kRecallLayers * cfg::kPagesPerRow,
            [&](int i) { row.layer[i / cfg::kPagesPerRow].slot[i % cfg::kPagesPerRow] = kNone; });
  team.each(kRecallLayers * kChoiceSlots, [&](int i) { row.layer[i / kChoiceSlots].page[i % kChoiceSlots] = kNone; });
  if (team.leader()) {
    row.pages = row.sent = 0;
    row.chosen = row.missed = row.chosen_before = row.missed_before = 0;
    row.decoded = false;
  }
  team.sync();
}

// The row's pages, from its first on, that are in the host pool.
DP_FN inline int32_t pages_left(const SlowRow& row, uint32_t ended) {
  int32_t page = most(0, row.sent - cfg::kRecentBlocks);
  while (page < row.sent && includes(ended, row.sent_with[page % kRecentBlocks])) ++page;
  return page;
}

// Where a page of the row is, of which `full` are full, when `ended` lists that leave have.
DP_FN inline Residency residency(const SlowRow& row, int32_t page, int32_t full, uint32_t ended) {
  if (page >= row.pages) return Residency::kFree;
  if (page >= full) return Residency::kFilling;
  if (page >= row.sent) return Residency::kSealed;
  return page < pages_left(row, ended) ? Residency::kHost : Residency::kLeaving;
}

// The most pages that the row may have begun: each but the first ones takes the slot of one that has to have left.
DP_FN inline int32_t pages_allowed(const SlowRow& row, uint32_t ended) {
  return most(cfg::kSinkBlocks, pages_left(row, ended)) + cfg::kRecentBlocks;
}

// The row's next page leaves for page `host` of the host pool, with the list of `ticket`: blocks [kRecallLayers] of it.
template <class Team>
DP_FN void send_page(Team& team, SlowRow& row, int32_t host, uint32_t ticket, int pool_pages, Transfer* blocks) {
  const int32_t page = row.sent;
  team.each(kRecallLayers, [&](int layer) {
    blocks[layer] = {pool_block(layer, row.slot[pinned_slot(page)], pool_pages), host_block(layer, host)};
  });
  team.sync();
  if (team.leader()) {
    row.host[page] = host;
    row.sent_with[page % kRecentBlocks] = ticket;
    ++row.sent;
  }
  team.sync();
}

// Whether no transfer names the row's slots and host pages any more, when so many lists have ended.
DP_FN inline bool is_quiet(const SlowRow& row, uint32_t recalls_ended, uint32_t leaving_ended) {
  const bool left = row.sent == 0 || includes(leaving_ended, row.sent_with[(row.sent - 1) % kRecentBlocks]);
  return left && includes(recalls_ended, row.recalled_with);
}

}  // namespace dp
