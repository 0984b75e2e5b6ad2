// The toy model's slow rows: KV of several layers in the pool and in host memory, blocks that leave and come back by
// copiers that dawdle. Each block that a token attends to has to hold what the row's history says.
#pragma once
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "common/scheduler.hpp"
#include "copier.hpp"
#include "ring_file.hpp"

namespace dp {

constexpr uint32_t kFirstTicket = 0u - 500;

class SlowToy {
 public:
  // `pool` [kRecallLayers][pages][kPageSize]; kv(token, position) is what a token leaves in the first layer.
  template <class Kv>
  SlowToy(RecallMemory& memory, uint64_t* pool, Kv kv)
      : memory_(memory),
        pool_(pool),
        kv_(kv),
        host_(size_t{kHostPages} * kRecallLayers * cfg::kPageSize),
        arriving_(memory.recalls, host_.data(), pool, cfg::kPageSize, 1, 600),
        leaving_(memory.departures, pool, host_.data(), cfg::kPageSize, 2, 600) {
    for (BlockQueue* queue : {&memory.recalls, &memory.departures}) queue->published = queue->ended = kFirstTicket - 1;
  }

  // What a step is said to have taken.
  void measure(uint64_t step_ns, uint64_t stall_ns) { memory_.meter = {step_ns, stall_ns, recalled, 1000 * recalled}; }

  uint64_t recalled = 0, chosen = 0, passes = 0, drained = 0;

  // What passes between two steps.
  void dawdle(uint32_t copies) {
    drained += static_cast<uint64_t>(memory_.draining);
    follow();
    for (; copies > 0; --copies) turn_++ % 2 == 0 ? arriving_.step() : leaving_.step();
    follow();
  }

  // All layers of a batch row. The first layer's KV by position, if the row attends to all of it: [context].
  std::vector<uint64_t> run(State& s, StepBuffers& b, int r) {
    const int32_t slot = b.row_slot[r], context = b.context[r];
    SlowRow& row = memory_.row[slot];
    expect(row.pages == pages_for(context), "a page is not begun that the step needs");
    for (int t = b.query_begin[r]; t < b.query_begin[r + 1]; ++t) {
      const int32_t position = b.position[t], page = b.slot[kFull][t] / cfg::kPageSize;
      expect(page == row.slot[pinned_slot(position / cfg::kPageSize)], "a token's KV goes to a wrong slot");
      for (int layer = 0; layer < kRecallLayers; ++layer) word(layer, page, position) = of(layer, b.token[t], position);
    }
    std::vector<uint64_t> seen(static_cast<size_t>(context));
    const bool chooses = row.sparse != 0;
    expect(!chooses || b.query_begin[r + 1] - b.query_begin[r] == 1, "a prompt chooses");
    for (int layer = 0; layer < kRecallLayers; ++layer) {
      chooses ? choose_some(s, b, row, slot, layer, context) : attend_to_all(s, b, row, slot, layer, context, seen);
    }
    if (chooses) {
      for (int p = 0; p < context; ++p) seen[static_cast<size_t>(p)] = of(0, token(s, slot, p), p);
    } else if (context % 3 == 0) {
      bring_pass(b, row, 0, 0);  // in flight when the row goes on, or leaves
    }
    return seen;
  }

 private:
  uint64_t of(int layer, int32_t token, int position) const {
    return kv_(token, position) ^ static_cast<uint64_t>(layer) << 56;
  }
  uint64_t& word(int layer, int32_t page, int position) {
    return pool_[static_cast<size_t>(pool_block(layer, page, cfg::kPages[kFull])) * cfg::kPageSize +
                 static_cast<size_t>(position % cfg::kPageSize)];
  }
  static int32_t token(const State& s, int32_t slot, int position) {
    return history_token(s, s.rows.request[slot], position);
  }

  uint64_t check(const State& s, int32_t slot, int layer, int32_t page, int position) {
    expect(page >= 0, "a page that a token attends to has no slot");
    const uint64_t found = word(layer, page, position);
    expect(found == of(layer, token(s, slot, position), position), "a block is not the one that is attended to");
    return found;
  }

  void wait(const SlowRow& row) {
    for (int i = 0; !includes(observe(memory_.recalls.ended), row.recalled_with); ++i) {
      expect(i < 100'000, "a list does not end");
      dawdle(3);
    }
  }

  Transfer recall_of(const SlowRow& row, int layer, int32_t page, int slot) const {
    expect(residency(row, page, row.pages - 1, observe(memory_.departures.ended)) == Residency::kHost,
           "a page is recalled before it has left");
    return {host_block(layer, row.host[page]), pool_block(layer, row.slot[kPinnedSlots + slot], cfg::kPages[kFull])};
  }

  void announce_list(SlowRow& row, uint32_t ticket, int count) {
    memory_.recalls.count_of(ticket) = count;
    publish(memory_.recalls.published, ticket);
    row.recalled_with = ticket;
    recalled += static_cast<uint64_t>(count);
  }

  uint32_t next_list() {
    const uint32_t ticket = memory_.recalls.published + 1;
    while (!includes(observe(memory_.recalls.ended), ticket - BlockQueue::kPlaces)) dawdle(3);
    return ticket;
  }

  void bring_pass(StepBuffers& b, SlowRow& row, int layer, int first) {
    const uint32_t ticket = next_list();
    Transfer* blocks = memory_.recalls.items_of(ticket);
    SerialTeam team;
    const int misses =
        bring(team, row, layer, first, least(first + kStagedBlocks, row.pages), static_cast<uint32_t>(b.step), *work_,
              [&](int i, int32_t page, int slot) { blocks[i] = recall_of(row, layer, page, slot); });
    announce_list(row, ticket, misses);
    ++passes;
  }

  void attend_to_all(const State& s, StepBuffers& b, SlowRow& row, int32_t slot, int layer, int context,
                     std::vector<uint64_t>& seen) {
    for (int first = 0; first < row.pages; first += kStagedBlocks) {
      bring_pass(b, row, layer, first);
      wait(row);
      const int last = least((first + kStagedBlocks) * cfg::kPageSize, context);
      for (int p = first * cfg::kPageSize; p < last; ++p) {
        const uint64_t found = check(s, slot, layer, b.table[kFull][slot][p / cfg::kPageSize], p);
        if (layer == 0) seen[static_cast<size_t>(p)] = found;
      }
    }
  }

  void choose_some(const State& s, StepBuffers& b, SlowRow& row, int32_t slot, int layer, int context) {
    const uint32_t ticket = next_list();
    Transfer* blocks = memory_.recalls.items_of(ticket);
    const auto score = [&](int i) { return static_cast<uint32_t>(context / 5 + 7 * i + layer) * 2654435761u >> 26; };
    SerialTeam team;
    const int n = choose(team, row.pages, score, *work_);
    const int misses = place(team, row.layer[layer], n, static_cast<uint32_t>(b.step), *work_,
                             [&](int i, int32_t page, int to) { blocks[i] = recall_of(row, layer, page, to); });
    int32_t table[cfg::kPagesPerRow];
    const int entries = tabulate(team, row, row.layer[layer], n, *work_, table);
    announce_list(row, ticket, misses);
    chosen += static_cast<uint64_t>(n);
    row.chosen += static_cast<uint32_t>(n);
    row.missed += static_cast<uint32_t>(misses);
    wait(row);
    const int sinks = least(row.pages, cfg::kSinkBlocks), recent = first_recent(row.pages);
    for (int i = 0; i < entries; ++i) {
      const int page = i < sinks ? i : i < sinks + n ? work_->chosen[i - sinks] : recent + i - sinks - n;
      for (int p = page * cfg::kPageSize; p < least((page + 1) * cfg::kPageSize, context); ++p) {
        check(s, slot, layer, table[i], p);
      }
    }
  }

  // A host page that a list names lives on until the list has ended.
  void follow() {
    BlockQueue& queue = memory_.departures;
    for (uint32_t t = followed_ + 1; t != queue.published + 1; ++t) {
      for (int i = 0; i < queue.count_of(t); i += kRecallLayers) {
        const int32_t page = queue.items_of(t)[i].to / kRecallLayers;
        lives_[t].emplace_back(page, memory_.generation[page]);
      }
      followed_ = t;
    }
    const uint32_t ended = observe(queue.ended);
    std::erase_if(lives_, [&](const auto& list) {
      for (const auto& [page, life] : list.second) {
        expect(memory_.generation[page] == life, "a page is given to another while blocks leave for it");
      }
      return includes(ended, list.first);
    });
  }

  RecallMemory& memory_;
  uint64_t* pool_;
  uint64_t (*kv_)(int32_t, int);
  std::vector<uint64_t> host_;
  Copier arriving_, leaving_;
  std::unique_ptr<RecallWork> work_ = std::make_unique<RecallWork>();
  std::map<uint32_t, std::vector<std::pair<int32_t, uint32_t>>> lives_;
  uint32_t followed_ = kFirstTicket - 1;
  uint64_t turn_ = 0;
};

}  // namespace dp
