// From a row of logits to a token, by a team whose members divide the lanes evenly. The result depends on the logits,
// the parameters, the seed and the position, and on nothing else: not on the batch, the team or the target.
//
// Weights are e^((logit - peak) / temperature), so the largest is 1. Temperature 0 is a true argmax. Otherwise min_p,
// top_k and top_p each raise a threshold under which weights do not count, found by bisection over the bits of the
// weights, which order as they do; equal weights stand or fall together. Then the cumulative weights are inverted at a
// random number, in the order of lanes.
#pragma once
#include <cstdint>

#include "common/exact.hpp"
#include "common/layout.hpp"
#include "common/philox.hpp"
#include "common/portable.hpp"
#include "common/team.hpp"

namespace dp {

// As in RequestParams.
struct Sampling {
  uint64_t seed;
  float temperature;
  float top_p;
  float min_p;
  int32_t top_k;
  float repetition_penalty;
  float presence_penalty;
  float frequency_penalty;
  int32_t logprobs, prompt_logprobs;
};

// Temperatures below it are greedy: the weights of all but the largest logits would vanish.
constexpr float kGreedyBelow = 1e-5f;

// How logits become log probabilities. The peak is kept apart, for its sum with the logarithm would round to it. Not
// sound: of logits that no token can be sampled from.
struct Scale {
  bool sound;
  float peak, log_sum;
  DP_FN float logprob(float logit) const { return logit - peak - log_sum; }
};

// What a team shares while it samples one row.
struct SamplerMemory {
  float sum[kLanes];
  float tree[kLanes];
  int32_t count[kLanes];
  uint64_t best[kLanes];
};

template <class Team>
class Sampler {
 public:
  DP_FN Sampler(Team& team, SamplerMemory& memory) : team_(team), memory_(memory) {}

  // A token by `logits` [n], which may lie in `scratch` [n], the team's own. -1: they hold a NaN or plus infinity, or
  // nothing but minus infinities.
  DP_FN int32_t draw(const float* logits, int n, const Sampling& params, uint32_t position, float* scratch) {
    const Peak peak = find_peak(logits, n);
    if (peak.token < 0 || params.temperature < kGreedyBelow || params.top_k == 1) return peak.token;
    const float inverse = 1.0f / params.temperature;
    team_.each(n, [&](int i) { scratch[i] = exact_exp((logits[i] - peak.logit) * inverse); });
    return pick(scratch, n, threshold(scratch, n, params), uniform(params.seed, position));
  }

  // The scale of `logits` [n], and the `count` most probable ids, equal ones in their order, with their logprobs; id -1
  // where no more can be drawn. Nothing if no token can be.
  DP_FN Scale rank(const float* logits, int n, int count, TopLogprobs& top) {
    const Peak peak = find_peak(logits, n);
    if (peak.token < 0) return {};
    const Scale scale = {true, peak.logit, exact_log(partition(logits, n, peak.logit))};
    for (int k = 0; k < count; ++k) {
      const uint64_t first = best_of_lanes();
      const bool none = first == Least::kEmpty;
      const int32_t id = none ? -1 : id_of(first);
      if (team_.leader()) {
        top.token[k] = id;
        top.logprob[k] = none ? 0.0f : scale.logprob(logits[id]);
      }
      if (none) continue;
      // Its lane goes on with its best item after this one.
      const int lane = id % kLanes;
      const uint64_t next = team_.reduce((n - lane + kLanes - 1) / kLanes,
                                         [&](int row) {
                                           const int i = lane + row * kLanes;
                                           const uint64_t place = place_of(ordered(logits[i]), i);
                                           return place > first && logits[i] > -kInfinity ? place : Least::kEmpty;
                                         },
                                         Least());
      if (team_.leader()) memory_.best[lane] = next;
    }
    team_.sync();
    return scale;
  }

 private:
  static constexpr float kInfinity = __builtin_huge_valf();
  static constexpr float kSmallest = 0x1p-126f;  // no weight above 0 is smaller

  struct Peak {
    int32_t token;
    float logit;
  };

  struct Kept {
    float mass;
    int32_t count;
  };

  // f(item, own) for the items of this member's lanes; `own` numbers them from 0.
  template <class F>
  DP_FN void lanes(int n, F f) {
    const int mine = kLanes / team_.count(), first = team_.index() * mine;
    for (int base = first; base < n; base += kLanes) {
      const int end = least(mine, n - base);
      for (int own = 0; own < end; ++own) f(base + own, own);
    }
  }

  template <class F>
  DP_FN void own_lanes(F f) {
    const int mine = kLanes / team_.count();
    for (int own = 0; own < mine; ++own) f(team_.index() * mine + own, own);
  }

  // Joins lane l + 128 into l, then l + 64 and so on, the order that every team keeps; the result is in lane 0.
  template <class F>
  DP_FN void halve(F join) {
    team_.sync();
    for (int stride = kLanes / 2; stride > 0; stride /= 2) {
      team_.each(stride, [&](int l) { join(l, l + stride); });
      team_.sync();
    }
  }

  // Places order items by falling logit (`order` is that of it), equal ones by id. None is kBad.
  static constexpr uint64_t kBad = 0;
  static DP_FN uint64_t place_of(int32_t order, int32_t id) {
    return uint64_t{static_cast<uint32_t>(order) ^ 0x7FFFFFFFu} << 32 | static_cast<uint32_t>(id);
  }
  static DP_FN int32_t id_of(uint64_t place) { return static_cast<int32_t>(place & 0xFFFFFFFFu); }
  static DP_FN float logit_of(uint64_t place) {
    return value_of(static_cast<int32_t>(static_cast<uint32_t>(place >> 32) ^ 0x7FFFFFFFu));
  }

  DP_FN uint64_t best_of_lanes() {
    return team_.reduce(kLanes, [&](int l) { return memory_.best[l]; }, Least());
  }

  // The largest logit and the lowest id that has it; token -1 for a row that cannot be sampled. Leaves the best place
  // of each lane in memory_.best.
  DP_FN Peak find_peak(const float* logits, int n) {
    const int32_t lowest = ordered(-kInfinity), beyond = ordered(kInfinity);
    int32_t best[Team::kLanesEach], id[Team::kLanesEach], bad[Team::kLanesEach];
    own_lanes([&](int, int own) { best[own] = lowest, id[own] = -1, bad[own] = 0; });
    lanes(n, [&](int i, int own) {
      const int32_t x = ordered(logits[i]);
      id[own] = x > best[own] ? i : id[own];
      best[own] = most(best[own], x);
      bad[own] |= (x >= beyond) | (x < lowest);
    });
    own_lanes([&](int l, int own) {
      memory_.best[l] = bad[own] != 0 ? kBad : id[own] < 0 ? Least::kEmpty : place_of(best[own], id[own]);
    });
    const uint64_t first = best_of_lanes();
    if (first == kBad || first == Least::kEmpty) return {-1, 0.0f};
    return {id_of(first), logit_of(first)};
  }

  // Sum of e^(logit - peak).
  DP_FN float partition(const float* logits, int n, float peak) {
    float sum[Team::kLanesEach];
    own_lanes([&](int, int own) { sum[own] = 0.0f; });
    lanes(n, [&](int i, int own) { sum[own] += exact_exp(logits[i] - peak); });
    own_lanes([&](int l, int own) { memory_.tree[l] = sum[own]; });
    halve([&](int a, int b) { memory_.tree[a] += memory_.tree[b]; });
    const float total = memory_.tree[0];
    team_.sync();
    return total;
  }

  // What is left of the weights from `least_weight` up; leaves the sums of the lanes in memory_.sum.
  DP_FN Kept keep(const float* weights, int n, float least_weight) {
    float sum[Team::kLanesEach];
    int32_t count[Team::kLanesEach];
    own_lanes([&](int, int own) { sum[own] = 0.0f, count[own] = 0; });
    lanes(n, [&](int i, int own) {
      const float weight = weights[i];
      sum[own] += weight >= least_weight ? weight : 0.0f;
      count[own] += weight >= least_weight ? 1 : 0;
    });
    own_lanes([&](int l, int own) {
      memory_.sum[l] = memory_.tree[l] = sum[own];
      memory_.count[l] = count[own];
    });
    halve([&](int a, int b) {
      memory_.tree[a] += memory_.tree[b];
      memory_.count[a] += memory_.count[b];
    });
    const Kept kept = {memory_.tree[0], memory_.count[0]};
    team_.sync();
    return kept;
  }

  DP_FN float threshold(const float* weights, int n, const Sampling& params) {
    team_.sync();
    float low = most(kSmallest, params.min_p);
    if (params.top_k > 0) low = cut(weights, n, low, [&](Kept kept) { return kept.count >= params.top_k; });
    if (params.top_p < 1.0f) {
      const float wanted = product(params.top_p, keep(weights, n, low).mass);
      low = cut(weights, n, low, [&](Kept kept) { return kept.mass >= wanted; });
    }
    return low;
  }

  // A largest threshold from `low` on at which what is kept is `enough`; `low` if nothing is.
  template <class Enough>
  DP_FN float cut(const float* weights, int n, float low, Enough enough) {
    uint32_t below = bits_of(low), above = bits_of(1.0f) + 1;
    Kept kept = keep(weights, n, low);
    int32_t dropped = 0;
    if (!enough(kept)) return low;
    // With a single weight between the two, where exactly the threshold lies does not matter.
    while (above - below > 1 && kept.count - dropped > 1) {
      const uint32_t middle = below + (above - below) / 2;
      const Kept there = keep(weights, n, float_of(middle));
      if (enough(there)) {
        below = middle;
        kept = there;
      } else {
        above = middle;
        dropped = there.count;
      }
    }
    return float_of(below);
  }

  // The item at which the cumulative weight, lane after lane, passes `fraction` of the whole.
  DP_FN int32_t pick(const float* weights, int n, float least_weight, float fraction) {
    keep(weights, n, least_weight);
    float total = 0.0f;
    for (int l = 0; l < kLanes; ++l) total += memory_.sum[l];
    const float wanted = product(fraction, total);
    // Rounding may leave nothing beyond `wanted`: then it is the last lane, and item, that holds anything.
    int lane = 0;
    float before = 0.0f, through = 0.0f;
    for (int l = 0; l < kLanes && through <= wanted; ++l) {
      if (memory_.sum[l] == 0.0f) continue;
      before = through;
      through += memory_.sum[l];
      lane = l;
    }
    int32_t token = -1;
    float passed = 0.0f;
    for (int i = lane; i < n && (token < 0 || passed <= wanted - before); i += kLanes) {
      if (weights[i] < least_weight) continue;
      passed += weights[i];
      token = i;
    }
    team_.sync();
    return token;
  }

  Team& team_;
  SamplerMemory& memory_;
};

}  // namespace dp
