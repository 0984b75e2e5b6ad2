// The toy model in C++: the next token is a hash of all that a row can see, read from paged KV through the step
// buffers.
#pragma once
#include <vector>

#include "../recall/slow_toy.hpp"
#include "ring_file.hpp"

namespace dp {

inline uint64_t mix(uint64_t x) {
  x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9;
  x = (x ^ x >> 27) * 0x94D049BB133111EB;
  return x ^ x >> 31;
}

// What a token leaves in the KV of a group.
inline uint64_t kv_of(int32_t token, int position, int group) {
  return mix(static_cast<uint64_t>(token) << 32 | static_cast<uint64_t>(position) << 8 | static_cast<uint64_t>(group));
}

inline int32_t token_of(const uint64_t (&sums)[cfg::kGroups]) {
  uint64_t all = 0;
  for (uint64_t sum : sums) all = mix(all + sum);
  return static_cast<int32_t>(all % cfg::kVocab);
}

// What the model says of a text, without any paging: the token that it would have after each prefix, and after the last
// the `count` that follow.
struct Spoken {
  std::vector<int32_t> within, after;

  Spoken(std::vector<int32_t> text, int count) {
    const size_t prompt = text.size();
    uint64_t sums[cfg::kGroups] = {};
    const auto next = [&](int position) {
      for (int g = 0; g < cfg::kGroups; ++g) {
        sums[g] += kv_of(text[static_cast<size_t>(position)], position, g);
        const int gone = position - cfg::kWindow[g];
        if (cfg::kWindow[g] > 0 && gone >= 0) sums[g] -= kv_of(text[static_cast<size_t>(gone)], gone, g);
      }
      return token_of(sums);
    };
    for (int i = 0; i < static_cast<int>(prompt); ++i) within.push_back(next(i));
    text.push_back(within.back());
    while (static_cast<int>(text.size() - prompt) < count) text.push_back(next(static_cast<int>(text.size()) - 1));
    within.pop_back();
    after.assign(text.begin() + static_cast<ptrdiff_t>(prompt), text.begin() + static_cast<ptrdiff_t>(prompt) + count);
  }
};

// The forward pass. `trace` becomes a digest of the steps so far.
class Toy {
 public:
  uint64_t trace = 0;

  explicit Toy(State& state) : state_(state) {
    for (int g = 0; g < cfg::kGroups; ++g) {
      const int layers = kOffload && g == kFull ? kRecallLayers : 1;
      kv_[g].resize(static_cast<size_t>(layers * cfg::kPages[g] * cfg::kPageSize));
    }
    if (!kOffload) return;
    slow_ = std::make_unique<SlowToy>(*state.recall, kv_[kFull].data(),
                                      [](int32_t token, int position) { return kv_of(token, position, kFull); });
  }

  SlowToy* slow() { return slow_.get(); }

  void run(StepBuffers& b) {
    const int rows = static_cast<int>(b.rows), tokens = static_cast<int>(b.tokens);
    expect(b.query_begin[0] == 0 && b.query_begin[rows] == tokens, "rows do not cover the step's tokens");
    for (int r = 0; r < rows; ++r) {
      const int32_t slot = b.row_slot[r];
      note(slot), note(b.context[r]);
      for (int t = b.query_begin[r]; t < b.query_begin[r + 1]; ++t) {
        const int position = b.context[r] - b.query_begin[r + 1] + t;
        expect(b.position[t] == position && b.token_row[t] == r, "a token is not where its row says");
        note(b.token[t]);
        for (int g = 0; g < cfg::kGroups; ++g) {
          if (is_slow(lane_of(b)) && g == kFull) continue;
          const int32_t page = b.table[g][slot][position / cfg::kPageSize];
          expect(page >= 0 && b.slot[g][t] == page * cfg::kPageSize + position % cfg::kPageSize, "a slot is wrong");
          kv_[g][static_cast<size_t>(b.slot[g][t])] = kv_of(b.token[t], position, g);
          note(b.slot[g][t]);
        }
      }
    }
    for (int r = 0; is_slow(lane_of(b)) && r < rows; ++r) seen_[b.row_slot[r]] = slow_->run(state_, b, r);
    for (int i = 0; i < static_cast<int>(b.samples); ++i) {
      const int32_t at = b.sample_index[i], r = b.token_row[at];
      const bool drawn = i >= static_cast<int>(b.scored);
      expect(b.sample_slot[i] == b.row_slot[r] && (!drawn || at == b.query_begin[r + 1] - 1), "a sample is wrong");
      b.sampled[i] = see(b, b.row_slot[r], b.position[at] + 1);
      // As if it were a logprob: what shows which position, and which pages, a record is of.
      b.logprob[i] = static_cast<float>(b.sampled[i]);
      b.top[i].token[0] = b.sampled[i];
      note(at), note(b.sampled[i]);
    }
  }

 private:
  int32_t see(const StepBuffers& b, int32_t slot, int context) {
    uint64_t sums[cfg::kGroups] = {};
    for (int g = 0; g < cfg::kGroups; ++g) {
      for (int p = cfg::kWindow[g] > 0 ? most(0, context - cfg::kWindow[g]) : 0; p < context; ++p) {
        if (is_slow(lane_of(b)) && g == kFull) {
          sums[g] += seen_[slot][static_cast<size_t>(p)];
          continue;
        }
        const int32_t page = b.table[g][slot][p / cfg::kPageSize];
        expect(page >= 0, "a page that a query sees is gone");
        sums[g] += kv_[g][static_cast<size_t>(page * cfg::kPageSize + p % cfg::kPageSize)];
      }
    }
    return token_of(sums);
  }

  void note(int32_t value) { trace = mix(trace * 31 + static_cast<uint32_t>(value)); }

  State& state_;
  std::vector<uint64_t> kv_[cfg::kGroups];
  std::unique_ptr<SlowToy> slow_;
  std::vector<uint64_t> seen_[kSlowRows];  // by row slot, of the full group, in the step
};

}  // namespace dp
