// Plays the link: does the lists of a queue by halves of blocks, in any order, and now and then stalls.
#pragma once
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "common/recall.hpp"

namespace dp {

class Copier {
 public:
  // Blocks of so many words, an even number. Stalls for up to so many steps.
  Copier(BlockQueue& queue, const uint64_t* from, uint64_t* to, int words, uint64_t seed, uint32_t longest_stall)
      : queue_(queue), from_(from), to_(to), half_(words / 2), state_(seed), longest_stall_(longest_stall) {}

  // A half of a block, if there is any to do.
  bool step() {
    if (stalled_ > 0) return --stalled_, false;
    if (draw(4000) == 0) stalled_ = draw(longest_stall_);
    while (left_.empty()) {
      if (open_) {
        arrive(queue_, ticket_++, 1);
        open_ = false;
      }
      if (!begun_) ticket_ = observe(queue_.ended) + 1, begun_ = true;
      const uint32_t published = observe(queue_.published);
      if (!includes(published, ticket_)) return false;
      if (ticket_ == published + 1) {
        std::fprintf(stderr, "a list that is not there is copied\n");
        std::abort();
      }
      open_ = true;
      for (int32_t i = 0; i < 2 * queue_.count_of(ticket_); ++i) left_.push_back(i);
    }
    std::swap(left_[draw(static_cast<uint32_t>(left_.size()))], left_.back());
    const Transfer item = queue_.items_of(ticket_)[left_.back() / 2];
    const int64_t half = left_.back() % 2;
    std::copy_n(from_ + (2 * item.from + half) * half_, half_, to_ + (2 * item.to + half) * half_);
    left_.pop_back();
    return true;
  }

  bool dawdles() { return draw(64) == 0; }

 private:
  uint32_t draw(uint32_t n) {
    uint64_t x = ++state_ * 0x9E3779B97F4A7C15;
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9;
    x = (x ^ x >> 27) * 0x94D049BB133111EB;
    return static_cast<uint32_t>((x ^ x >> 31) >> 32) % n;
  }

  BlockQueue& queue_;
  const uint64_t* from_;
  uint64_t* to_;
  int64_t half_;
  uint64_t state_;
  uint32_t longest_stall_, ticket_ = 0, stalled_ = 0;
  bool begun_ = false, open_ = false;
  std::vector<int32_t> left_;
};

}  // namespace dp
