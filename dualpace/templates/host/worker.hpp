// A CPU worker: takes an item, attends to its blocks a split at a time, and answers, unless nobody wants that any more.
#pragma once
#include <chrono>
#include <cmath>
#include <memory>

#include "common/cooperate.hpp"
#include "host/backoff.hpp"

namespace dp {

// What is the result over `more`'s keys too.
inline void join(WorkAnswer& to, const WorkAnswer& more) {
  for (int h = 0; h < cfg::kHeads; ++h) {
    const float peak = most(to.lse[h], more.lse[h]);
    const float kept = std::exp(to.lse[h] - peak), added = std::exp(more.lse[h] - peak), mass = kept + added;
    for (int d = 0; d < cfg::kHeadDim; ++d) to.out[h][d] = (kept * to.out[h][d] + added * more.out[h][d]) / mass;
    to.lse[h] = peak + std::log(mass);
  }
}

// `attend(query [kHeads][kHeadDim], blocks, their count, answer)` leaves `out` and `lse` of up to kSplitTokens tokens.
template <class Attend>
class Worker {
 public:
  // Of those that look for items in `cooperation`, the one with this desk.
  Worker(Cooperation& cooperation, int desk, Attend attend)
      : c_(cooperation), desk_(cooperation.desk[desk]), attend_(attend) {}

  // Works until `stopped()`, which it asks at least once a split and every tenth of a second.
  template <class Stopped>
  void run(Stopped stopped) {
    while (!stopped()) {
      if (claim()) {
        if (copy() && attend(stopped)) answer(stopped);
      } else {
        const auto waits = [&] { return stopped() || observe(c_.published) != observe(c_.claimed); };
        backoff_.wait_until(waits, kLookUs);
      }
    }
  }

 private:
  static constexpr int64_t kLookUs = 100'000, kLongestPauseUs = 5'000;
  static constexpr int kSplitBlocks = cfg::kSplitTokens / cfg::kPageSize;

  bool is_wanted() const { return glance(item().flag) == flag_; }
  WorkItem& item() const { return c_.item[ticket_ % kWorkItems]; }

  // The next ticket is this worker's. Places of tickets that were passed over long ago have others' items.
  bool claim() {
    uint32_t claimed = observe(c_.claimed);
    while (true) {
      const uint32_t published = observe(c_.published);
      if (claimed == published) return false;
      ticket_ = published - claimed > kWorkItems ? published - kWorkItems + 1 : claimed + 1;
      if (SharedWord<uint32_t>(c_.claimed).compare_exchange_weak(claimed, ticket_, order::memory_order_acq_rel)) {
        return true;
      }
    }
  }

  // A copy of the item and its query, if it is there. It may be withdrawn meanwhile, and its place another's: each word
  // is of some item then, and the answer will not count.
  bool copy() {
    flag_ = observe(item().flag);
    if (static_cast<uint32_t>(flag_) != ticket_ || flag_ >> 32 == 0) return false;
    row_ = peek(item().row);
    blocks_ = static_cast<int>(peek(item().blocks));
    for (int b = 0; b < blocks_; ++b) block_[b] = peek(item().block[b]);
    for (int h = 0; h < cfg::kHeads; ++h) {
      for (int d = 0; d < cfg::kHeadDim; ++d) query_[h][d] = peek(c_.query[row_][h][d]);
    }
    return true;
  }

  template <class Stopped>
  bool attend(Stopped& stopped) {
    const auto start = std::chrono::steady_clock::now();
    for (int b = 0; b < blocks_; b += kSplitBlocks) {
      if (!is_wanted() || stopped()) return false;
      WorkAnswer& to = b == 0 ? *result_ : *part_;
      attend_(query_[0], block_ + b, least(kSplitBlocks, blocks_ - b), to);
      if (b > 0) join(*result_, *part_);
    }
    const auto took = std::chrono::steady_clock::now() - start;
    result_->nanoseconds = static_cast<uint64_t>(std::chrono::nanoseconds(took).count());
    return true;
  }

  template <class Stopped>
  void answer(Stopped& stopped) {
    const uint32_t written = glance(desk_.written);
    const auto has_room = [&] { return written - observe(desk_.collected) < kAnswers; };
    while (!has_room()) {
      if (!is_wanted() || stopped()) return;
      backoff_.wait_until([&] { return has_room() || !is_wanted(); }, kLookUs);
    }
    WorkAnswer& to = desk_.answer[written % kAnswers];
    to = *result_;
    to.flag = flag_;
    publish(desk_.written, written + 1);
  }

  Cooperation& c_;
  WorkerDesk& desk_;
  Attend attend_;
  Backoff backoff_{kLongestPauseUs};
  uint32_t ticket_ = 0, row_ = 0;
  uint64_t flag_ = 0;
  int blocks_ = 0;
  int32_t block_[cfg::kItemBlocks] = {};
  float query_[cfg::kHeads][cfg::kHeadDim] = {};
  std::unique_ptr<WorkAnswer> result_ = std::make_unique<WorkAnswer>(), part_ = std::make_unique<WorkAnswer>();
};

}  // namespace dp
