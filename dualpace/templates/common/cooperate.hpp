// CPU workers attend to blocks where they lie in host memory. A device publishes items and merges the answers with its
// own partial results. This is the source of publisher and collector, whoever compiles it, and of what workers share.
//
// Nobody waits for anybody. The publisher owns the items' places: one is free for the next item once its own is
// answered or withdrawn, whatever a worker makes of it meanwhile. An item that is late is withdrawn, and its blocks are
// the caller's again, to be recalled. An answer counts if an item with its flag is still awaited, so it does not matter
// what a late worker reads, nor when it answers: it does so in places of its own and overwrites nothing.
#pragma once
#include <bit>
#include <cstdint>

#include "common/layout.hpp"
#include "common/portable.hpp"
#include "common/team.hpp"

namespace dp {

constexpr int kMostWorkers = 64;
// As many as workers may see to while a layer of the slow lane waits. Tickets that wrap go on in the next place.
constexpr int kWorkItems = std::bit_ceil(4u * most(kMostWorkers / 4, cfg::kSlowRows));
constexpr int kAnswers = 2;  // of a worker, that are not collected

// What one worker writes, and how far that is collected.
struct WorkerDesk {
  alignas(64) uint32_t written;  // answers
  alignas(64) uint32_t collected;
  WorkAnswer answer[kAnswers];
};

// In memory that the device and the workers map, zeroed at first.
struct Cooperation {
  alignas(64) uint32_t published;  // tickets that are there
  alignas(64) uint32_t claimed;    // of these, those that some worker took
  WorkItem item[kWorkItems];       // by ticket
  alignas(64) float query[most(1, cfg::kSlowRows)][cfg::kHeads][cfg::kHeadDim];
  WorkerDesk desk[kMostWorkers];
};

// What the publisher knows of an item; blocks are numbered among those that were given with it.
struct AwaitedWork {
  uint64_t flag;  // 0: not awaited
  int32_t row, layer;
  int32_t begin, blocks;
  int32_t partial;  // the answer's place among the row's partial results
  uint64_t due;
};

struct WorkLedger {
  uint32_t published;
  uint32_t collected[kMostWorkers];
  AwaitedWork awaited[kWorkItems];  // by ticket
  // Items, blocks of those that were answered and what they took workers, and answers that nobody awaited any more.
  uint64_t given, answered, withdrawn, blocks, nanoseconds, late;
};

// What a team shares meanwhile.
struct WorkScratch {
  uint32_t written[kMostWorkers];
  int32_t before[kWorkItems];
  int32_t withdrawn[kWorkItems];  // places
};

// Generations of rows' lives are numbered from 1.
DP_FN constexpr uint64_t work_flag(uint32_t generation, uint32_t ticket) {
  return static_cast<uint64_t>(generation) << 32 | ticket;
}
DP_FN constexpr int work_items(int blocks) { return (blocks + cfg::kItemBlocks - 1) / cfg::kItemBlocks; }

// The row's query [kHeads][kHeadDim] for what is given next; the row awaits nothing.
template <class Team>
DP_FN void ask(Team& team, Cooperation& c, int row, const float* query) {
  settle();
  team.each(cfg::kHeads * cfg::kHeadDim,
            [&](int i) { post(c.query[row][i / cfg::kHeadDim][i % cfg::kHeadDim], query[i]); });
  team.sync();
}

// Gives block_at(i), i < blocks, of a row's layer to the workers, as partial results from `partial` on, until `due`.
// Returns how many they got: the first ones, as many as there are places for.
template <class Team, class BlockAt>
DP_FN int give(Team& team, Cooperation& c, WorkLedger& ledger, int row, uint32_t generation, int layer, int blocks,
               BlockAt block_at, int partial, uint64_t due) {
  const uint32_t first = ledger.published + 1;
  const auto place = [&](int i) { return (first + static_cast<uint32_t>(i)) % kWorkItems; };
  const int wanted = least(work_items(blocks), kWorkItems);
  const uint64_t taken = team.reduce(
      wanted, [&](int i) { return static_cast<uint64_t>(ledger.awaited[place(i)].flag == 0 ? wanted : i); }, Least());
  const int items = wanted == 0 ? 0 : static_cast<int>(taken), given = least(blocks, items * cfg::kItemBlocks);
  settle();
  team.each(items, [&](int i) {
    const int begin = i * cfg::kItemBlocks, count = least(cfg::kItemBlocks, given - begin);
    const uint64_t flag = work_flag(generation, first + static_cast<uint32_t>(i));
    ledger.awaited[place(i)] = {flag, row, layer, begin, count, partial + i, due};
    WorkItem& item = c.item[place(i)];
    post(item.row, static_cast<uint32_t>(row));
    post(item.layer, static_cast<uint32_t>(layer));
    post(item.blocks, static_cast<uint32_t>(count));
    post(item.flag, flag);  // nobody looks for it before it is published
  });
  team.each(given, [&](int b) {
    post(c.item[place(b / cfg::kItemBlocks)].block[b % cfg::kItemBlocks], static_cast<int32_t>(block_at(b)));
  });
  team.sync();
  if (team.leader()) {
    ledger.published += static_cast<uint32_t>(items);
    ledger.given += static_cast<uint64_t>(items);
    settle();
    post(c.published, ledger.published);
  }
  team.sync();
  return given;
}

// Nobody is to work on the item any more, and its place is free.
DP_FN inline void forget(Cooperation& c, WorkLedger& ledger, int place) {
  ledger.awaited[place].flag = 0;
  post(c.item[place].flag, uint64_t{0});
}

// Calls take(what was awaited, answer) as a team for each answer of the workers that counts.
template <class Team, class Take>
DP_FN void collect(Team& team, Cooperation& c, WorkLedger& ledger, WorkScratch& w, int workers, Take take) {
  team.each(workers, [&](int i) { w.written[i] = peek(c.desk[i].written); });
  settle();
  team.sync();
  for (int i = 0; i < workers; ++i) {
    WorkerDesk& desk = c.desk[i];
    const uint32_t begin = ledger.collected[i];
    for (uint32_t at = begin; at != w.written[i]; ++at) {
      const WorkAnswer& answer = desk.answer[at % kAnswers];
      const int place = static_cast<int>(static_cast<uint32_t>(answer.flag) % kWorkItems);
      const AwaitedWork awaited = ledger.awaited[place];
      const bool counts = awaited.flag == answer.flag;
      if (counts) take(awaited, answer);
      team.sync();
      if (team.leader()) {
        if (counts) {
          forget(c, ledger, place);
          ++ledger.answered;
          ledger.blocks += static_cast<uint64_t>(awaited.blocks);
          ledger.nanoseconds += answer.nanoseconds;
        } else {
          ++ledger.late;
        }
      }
      team.sync();
    }
    if (team.leader() && begin != w.written[i]) {
      ledger.collected[i] = w.written[i];
      publish(desk.collected, w.written[i]);
    }
  }
  team.sync();
}

// Withdraws the items of which which(awaited) is true: those that are due, or those of a row that has ended. Returns
// how many, with their places in WorkScratch::withdrawn; their entries stay until more is given.
template <class Team, class Which>
DP_FN int withdraw(Team& team, Cooperation& c, WorkLedger& ledger, WorkScratch& w, Which which) {
  const auto chosen = [&](int i) { return ledger.awaited[i].flag != 0 && which(ledger.awaited[i]); };
  team.each(kWorkItems, [&](int i) { w.before[i] = chosen(i) ? 1 : 0; });
  const int count = team.scan(w.before, kWorkItems);
  team.each(kWorkItems, [&](int i) {
    if (!chosen(i)) return;
    w.withdrawn[w.before[i]] = i;
    forget(c, ledger, i);
  });
  team.sync();
  if (team.leader()) ledger.withdrawn += static_cast<uint64_t>(count);
  team.sync();
  return count;
}

}  // namespace dp
