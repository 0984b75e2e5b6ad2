// Slow rows without a model: `world STEPS SEED MEMBERS THREADED`. Two batches of them go from layer to layer at paces
// of their own: a layer chooses, recalls, and once that has arrived looks at every block that it attends to. Rows end,
// and are aborted while blocks of theirs are on their way. Copies go block by block in any order, between any two of
// the lane's own doings, or in threads that dawdle; now and then the link stalls. Tickets pass 2^32. Prints what
// happened.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <thread>
#include <vector>

#include "../worlds.hpp"
#include "common/recall.hpp"
#include "copier.hpp"

namespace {

using namespace dp;

constexpr int kPoolPages = cfg::kPages[0], kBatches = 2;
constexpr uint32_t kFirstTicket = 0u - 500;
constexpr uint64_t kLongestWait = 100'000;

struct Block {
  uint64_t word[4];
};

// What a page's block holds once it has so many tokens.
Block contents(uint64_t life, int page, int layer, int tokens) {
  const uint64_t seed = mix(life << 32 | static_cast<uint64_t>(page << 12 | layer << 8 | tokens));
  return {{seed, seed + 1, seed + 2, seed + 3}};
}

struct Tally {
  uint64_t steps, lives, aborted_in_flight, chosen, recalled, sent, paused, waits, drained, trace;
};

enum class Use { kFree, kLives, kDrains };

class World {
 public:
  World(uint64_t seed, int members, bool threaded)
      : random_{seed},
        crew_(members),
        arriving_(*recalls_, host_.data()->word, pool_.data()->word, 4, seed + 1, 6000),
        leaving_(*departures_, pool_.data()->word, host_.data()->word, 4, seed + 2, 6000) {
    for (BlockQueue* queue : {recalls_.get(), departures_.get()}) queue->published = queue->ended = kFirstTicket - 1;
    for (int page = 0; page < kPoolPages; ++page) free_pool_.push_back(page);
    for (int page = 0; page < kHostPages; ++page) free_host_.push_back(page);
    if (!threaded) return;
    for (Copier* copier : {&arriving_, &leaving_}) {
      threads_.emplace_back([copier](std::stop_token stopped) {
        while (!stopped.stop_requested()) {
          if (!copier->step() || copier->dawdles()) std::this_thread::sleep_for(std::chrono::microseconds(10));
        }
      });
    }
  }

  Tally play(uint64_t steps) {
    while (tally_.steps < steps) step();
    for (Seat& seat : seats_) {
      if (seat.use == Use::kLives) end(seat);
    }
    while (std::any_of(seats_.begin(), seats_.end(), [](Seat& s) { return s.use != Use::kFree; })) {
      copy();
      reclaim();
      note(false);
    }
    expect_all(free_pool_, kPoolPages, "a page of the pool is lost");
    expect_all(free_host_, kHostPages, "a page of the host pool is lost");
    return tally_;
  }

 private:
  struct Seat {
    SlowRow row;
    Use use = Use::kFree;
    uint64_t life;
    int tokens, target, batch;
    bool active;                    // takes part in the batch's step
    std::vector<int32_t> promised;  // host pages for the rest of its life
    std::vector<int32_t> table, pages;
  };

  struct Batch {
    int layer;
    uint32_t ticket;
    bool waits, done;
  };

  void expect_all(std::vector<int32_t>& pages, int count, const char* what) {
    std::sort(pages.begin(), pages.end());
    expect(static_cast<int>(pages.size()) == count, what);
    for (int i = 0; i < count; ++i) expect(pages[static_cast<size_t>(i)] == i, what);
  }

  // Copies that go on between the lane's doings end at some time.
  void note(bool advanced) {
    idle_ = advanced ? 0 : idle_ + 1;
    expect(idle_ < kLongestWait || !threads_.empty(), "a list does not end");
  }

  // Copies go on a little, or by themselves.
  void copy() {
    if (!threads_.empty()) return std::this_thread::yield();
    for (uint32_t n = random_.draw(12); n > 0; --n) random_.one_in(2) ? arriving_.step() : leaving_.step();
  }

  // No list that has not ended names the page.
  void expect_unnamed(BlockQueue& queue, bool to, bool in_pool, int32_t page) {
    for (uint32_t t = observe(queue.ended) + 1; t != queue.published + 1; ++t) {
      for (int i = 0; i < queue.count_of(t); ++i) {
        const int32_t block = to ? queue.items_of(t)[i].to : queue.items_of(t)[i].from;
        expect((in_pool ? block % kPoolPages : block / kRecallLayers) != page, "a page is given back in flight");
      }
    }
  }

  void reclaim() {
    for (Seat& seat : seats_) {
      if (seat.use != Use::kDrains) continue;
      if (!is_quiet(seat.row, observe(recalls_->ended), observe(departures_->ended))) {
        ++tally_.drained;
        continue;
      }
      for (int32_t page : seat.row.slot) {
        expect_unnamed(*recalls_, true, true, page);
        expect_unnamed(*departures_, false, true, page);
        free_pool_.push_back(page);
      }
      for (int p = 0; p < seat.row.sent; ++p) {
        expect_unnamed(*recalls_, false, false, seat.row.host[p]);
        expect_unnamed(*departures_, true, false, seat.row.host[p]);
        free_host_.push_back(seat.row.host[p]);
      }
      seat.use = Use::kFree;
    }
  }

  int32_t take(std::vector<int32_t>& pages) {
    std::swap(pages[random_.draw(static_cast<uint32_t>(pages.size()))], pages.back());
    const int32_t page = pages.back();
    pages.pop_back();
    return page;
  }

  void admit() {
    for (Seat& seat : seats_) {
      if (seat.use != Use::kFree || free_pool_.size() < cfg::kCacheBlocks || !random_.one_in(3)) continue;
      const int target = 1 + static_cast<int>(random_.draw(cfg::kMaxContext));
      if (free_host_.size() < static_cast<size_t>(target / cfg::kPageSize)) continue;
      seat.use = Use::kLives, seat.life = ++tally_.lives, seat.tokens = 0, seat.target = target;
      seat.batch = static_cast<int>(random_.draw(kBatches));
      for (int32_t& slot : seat.row.slot) slot = take(free_pool_);
      for (int i = 0; i < target / cfg::kPageSize; ++i) seat.promised.push_back(take(free_host_));
      seat.row.recalled_with = observe(recalls_->ended);
      crew_.run([&](auto& team) { start_row(team, seat.row); });
    }
  }

  void end(Seat& seat) {
    if (!is_quiet(seat.row, observe(recalls_->ended), observe(departures_->ended))) ++tally_.aborted_in_flight;
    free_host_.insert(free_host_.end(), seat.promised.begin(), seat.promised.end());
    seat.promised.clear();
    seat.use = Use::kDrains;
    seat.active = false;
  }

  void step() {
    reclaim();
    admit();
    for (Seat& seat : seats_) begin(seat);
    if (std::any_of(seats_.begin(), seats_.end(), [](Seat& s) { return s.active; })) {
      walk();
      ++tally_.steps;
    } else {
      copy();
      note(false);
    }
    send();
  }

  // Both batches through all layers.
  void walk() {
    Batch batches[kBatches] = {};
    while (std::any_of(batches, batches + kBatches, [](Batch& b) { return !b.done; })) {
      const auto b = random_.draw(kBatches);
      const bool advanced = advance(static_cast<int>(b), batches[b]);
      copy();
      note(advanced);
      if (advanced && random_.one_in(200)) {
        Seat& seat = seats_[random_.draw(cfg::kSlowRows)];
        if (seat.use == Use::kLives) end(seat);
      }
      reclaim();
    }
    for (Seat& seat : seats_) {
      if (seat.active && ++seat.tokens == seat.target) end(seat);
    }
  }

  void begin(Seat& seat) {
    seat.active = seat.use == Use::kLives;
    if (!seat.active || seat.tokens % cfg::kPageSize != 0) return;
    if (seat.row.pages < pages_allowed(seat.row, observe(departures_->ended))) {
      ++seat.row.pages;
    } else {
      seat.active = false;
      ++tally_.paused;
    }
  }

  // The batch's next half of a layer, unless it waits.
  bool advance(int b, Batch& batch) {
    if (batch.done) return false;
    if (batch.waits) {
      if (!includes(observe(recalls_->ended), batch.ticket)) return ++tally_.waits, false;
      for (Seat& seat : seats_) {
        if (seat.active && seat.batch == b) attend(seat, batch.layer);
      }
      batch.waits = false;
      batch.done = ++batch.layer == kRecallLayers;
      return true;
    }
    batch.ticket = recalls_->published + 1;
    int count = 0;
    for (Seat& seat : seats_) {
      if (seat.active && seat.batch == b) count += recall(seat, batch.layer, batch.ticket, count);
    }
    recalls_->count_of(batch.ticket) = count;
    publish(recalls_->published, batch.ticket);
    return batch.waits = true;
  }

  // The token's KV, then its choice and what that takes; returns the blocks that have to be brought.
  int recall(Seat& seat, int layer, uint32_t ticket, int count) {
    SlowRow& row = seat.row;
    const int page = row.pages - 1, tokens = seat.tokens % cfg::kPageSize + 1;
    pool_[block_at(layer, row.slot[pinned_slot(page)])] = contents(seat.life, page, layer, tokens);
    // Pages come and go slowly, as attention's do.
    const auto score = [&](int i) {
      const auto now = static_cast<uint64_t>(seat.tokens + 7 * i) / (1 + seat.life % 16);
      return static_cast<uint32_t>(mix(seat.life << 40 | now << 20 | static_cast<uint64_t>(layer << 16 | i)) % 50);
    };
    int chosen = 0, misses = 0, entries = 0;
    seat.table.assign(cfg::kPagesPerRow, kNone);
    crew_.run([&](auto& team) {
      const int n = choose(team, row.pages, score, *work_);
      const int m = place(
          team, row.layer[layer], n, static_cast<uint32_t>(tally_.steps), *work_, [&](int i, int32_t missed, int slot) {
            recalls_->items_of(ticket)[count + i] = {host_block(layer, row.host[missed]),
                                                     pool_block(layer, row.slot[kPinnedSlots + slot], kPoolPages)};
          });
      const int all = tabulate(team, row, row.layer[layer], n, *work_, seat.table.data());
      if (team.leader()) chosen = n, misses = m, entries = all;
    });
    row.recalled_with = ticket;
    seat.table.resize(static_cast<size_t>(entries));
    seat.pages = expected_pages(row.pages, score);
    tally_.chosen += static_cast<uint64_t>(chosen);
    tally_.recalled += static_cast<uint64_t>(misses);
    for (int32_t entry : seat.table) tally_.trace = mix(tally_.trace ^ static_cast<uint64_t>(entry));
    return misses;
  }

  template <class Score>
  static std::vector<int32_t> expected_pages(int pages, Score score) {
    std::vector<int32_t> candidate, all;
    for (int p = cfg::kSinkBlocks; p < pages - cfg::kRecentBlocks; ++p) candidate.push_back(p);
    std::stable_sort(candidate.begin(), candidate.end(),
                     [&](int32_t a, int32_t b) { return score(a - cfg::kSinkBlocks) > score(b - cfg::kSinkBlocks); });
    candidate.resize(std::min(candidate.size(), size_t{kChosen}));
    for (int p = 0; p < pages; ++p) {
      const bool always = p < cfg::kSinkBlocks || p >= pages - cfg::kRecentBlocks;
      if (always || std::find(candidate.begin(), candidate.end(), p) != candidate.end()) all.push_back(p);
    }
    return all;
  }

  static size_t block_at(int layer, int32_t page) { return static_cast<size_t>(pool_block(layer, page, kPoolPages)); }

  void attend(Seat& seat, int layer) {
    expect(seat.table.size() == seat.pages.size(), "a block too many or too few is attended to");
    for (size_t i = 0; i < seat.table.size(); ++i) {
      const int page = seat.pages[i], full = seat.tokens / cfg::kPageSize;
      const int tokens = page < full ? cfg::kPageSize : seat.tokens % cfg::kPageSize + 1;
      const Block right = contents(seat.life, page, layer, tokens), &found = pool_[block_at(layer, seat.table[i])];
      expect(std::equal(right.word, right.word + 4, found.word), "a block is not the one that is attended to");
    }
  }

  // A full page of each row leaves, if a list is to be had.
  void send() {
    const uint32_t ticket = departures_->published + 1;
    if (!includes(observe(departures_->ended), ticket - BlockQueue::kPlaces)) return;
    int count = 0;
    for (Seat& seat : seats_) {
      if (seat.use != Use::kLives || seat.row.sent >= seat.tokens / cfg::kPageSize || random_.one_in(4)) continue;
      const int32_t host = seat.promised.back();
      seat.promised.pop_back();
      crew_.run([&](auto& team) {
        send_page(team, seat.row, host, ticket, kPoolPages, departures_->items_of(ticket) + count);
      });
      count += kRecallLayers;
      ++tally_.sent;
    }
    if (count == 0) return;
    departures_->count_of(ticket) = count;
    publish(departures_->published, ticket);
  }

  Random random_;
  Tally tally_ = {};
  uint64_t idle_ = 0;
  std::vector<Block> pool_ = std::vector<Block>(size_t{kRecallLayers} * kPoolPages);
  std::vector<Block> host_ = std::vector<Block>(size_t{kRecallLayers} * kHostPages);
  std::vector<int32_t> free_pool_, free_host_;
  std::unique_ptr<BlockQueue> recalls_ = std::make_unique<BlockQueue>(), departures_ = std::make_unique<BlockQueue>();
  std::unique_ptr<RecallWork> work_ = std::make_unique<RecallWork>();
  std::vector<Seat> seats_ = std::vector<Seat>(cfg::kSlowRows);
  Crew crew_;
  Copier arriving_, leaving_;
  std::vector<std::jthread> threads_;
};

}  // namespace

int main(int count, char** arguments) {
  if (count != 5) return 2;
  const auto number = [&](int i) { return std::strtoull(arguments[i], nullptr, 10); };
  const Tally t = World(number(2) << 32, static_cast<int>(number(3)), number(4) != 0).play(number(1));
  const auto print = [](const char* name, uint64_t value) {
    std::printf("\"%s\": %llu, ", name, static_cast<unsigned long long>(value));
  };
  std::printf("{");
  print("steps", t.steps), print("lives", t.lives), print("aborted_in_flight", t.aborted_in_flight);
  print("chosen", t.chosen), print("recalled", t.recalled), print("sent", t.sent), print("paused", t.paused);
  print("waits", t.waits), print("drained", t.drained);
  std::printf("\"trace\": \"%016llx\"}\n", static_cast<unsigned long long>(t.trace));
}
