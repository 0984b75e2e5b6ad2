// What a device publishes and collects, for a test that asks from Python.
#include <chrono>
#include <cstring>
#include <memory>
#include <thread>

#include "common/cooperate.hpp"

namespace {

using namespace dp;

struct Publisher {
  Cooperation& cooperation;
  WorkLedger ledger = {};
  WorkScratch scratch = {};
  SerialTeam team = {};
};

Publisher& publisher_of(void* handle) { return *static_cast<Publisher*>(handle); }

uint64_t now_ns() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return static_cast<uint64_t>(std::chrono::nanoseconds(now).count());
}

}  // namespace

extern "C" {

int publisher_item_blocks() { return cfg::kItemBlocks; }

void* publisher_create(void* cooperation) { return new Publisher{*static_cast<Cooperation*>(cooperation)}; }
void publisher_destroy(void* handle) { delete &publisher_of(handle); }

// `blocks` [count] of a row's layer, for partial results from 0 on; returns how many the workers got.
int publisher_give(void* handle, int row, uint32_t generation, const float* query, const int32_t* blocks, int count,
                   uint64_t patience_ns) {
  Publisher& p = publisher_of(handle);
  ask(p.team, p.cooperation, row, query);
  return give(
      p.team, p.cooperation, p.ledger, row, generation, 0, count, [&](int b) { return blocks[b]; }, 0,
      now_ns() + patience_ns);
}

// Has the workers attend to all of `blocks`, giving them more whenever there are places; returns how many items that
// was.
int publisher_drive(void* handle, int workers, const float* query, const int32_t* blocks, int count) {
  Publisher& p = publisher_of(handle);
  ask(p.team, p.cooperation, 0, query);
  int given = 0, answered = 0, items = 0;
  while (given < count || answered < items) {
    const int more = give(
        p.team, p.cooperation, p.ledger, 0, 1, 0, count - given, [&](int b) { return blocks[given + b]; }, items,
        UINT64_MAX);
    given += more;
    items += work_items(more);
    collect(p.team, p.cooperation, p.ledger, p.scratch, workers,
            [&](const AwaitedWork&, const WorkAnswer&) { ++answered; });
    std::this_thread::yield();
  }
  return items;
}

// Copies answers to out [partial][kHeads][kHeadDim] and lse [partial][kHeads]; returns how many there were.
int publisher_collect(void* handle, int workers, float* out, float* lse) {
  Publisher& p = publisher_of(handle);
  int count = 0;
  collect(p.team, p.cooperation, p.ledger, p.scratch, workers, [&](const AwaitedWork& work, const WorkAnswer& answer) {
    std::memcpy(out + work.partial * cfg::kHeads * cfg::kHeadDim, answer.out, sizeof answer.out);
    std::memcpy(lse + work.partial * cfg::kHeads, answer.lse, sizeof answer.lse);
    ++count;
  });
  return count;
}

// Withdraws what is late; leaves whose partial results that were, and returns how many.
int publisher_withdraw(void* handle, int32_t* partials) {
  Publisher& p = publisher_of(handle);
  const uint64_t now = now_ns();
  const int count =
      withdraw(p.team, p.cooperation, p.ledger, p.scratch, [now](const AwaitedWork& work) { return work.due <= now; });
  for (int i = 0; i < count; ++i) partials[i] = p.ledger.awaited[p.scratch.withdrawn[i]].partial;
  return count;
}
}
