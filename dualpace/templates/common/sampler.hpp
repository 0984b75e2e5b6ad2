// From a row of logits to a token, by a team whose members divide the lanes evenly. The result depends on the logits,
// the parameters, the seed and the position, and on nothing else: not on the batch, the team or the target.
//
// A token counts by its distance from the most probable one, in steps of 2^-19 nats after the temperature, and by its
// mass, e to the minus distance in units of 2^-44. Both are whole numbers, so sums over a row are exact, in whatever
// order a team adds. Temperature 0 is a true argmax. Otherwise min_p, top_k and top_p each draw nearer the limit beyond
// which tokens do not count; equal distances stand or fall together. Then the cumulative mass is inverted at a random
// number, in the order of lanes.
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

constexpr float kStepsPerNat = 0x1p19f;
constexpr uint32_t kFar = (1u << 24) - 1;  // the largest distance, 32 nats; its mass is 0
constexpr int kMassBits = 44;              // the nearest token's mass is 2^44
static_assert(cfg::kVocab <= 1 << 19, "the mass of all tokens has to fit 64 bits");

// Of a token whose logit is `below` under the largest, which may be infinitely far. The choice is made in integers, as
// in exact_exp.
DP_FN inline uint32_t distance(float below, float steps_per_unit) {
  const int32_t steps = least(ordered(fused(below, steps_per_unit, 0.5f)), ordered(float{kFar}));
  return static_cast<uint32_t>(static_cast<int32_t>(value_of(steps)));
}

// e to the minus distance, as the bits of a float; what is left to make a mass of it is words of twice the size, and
// loops over both are no vectors.
DP_FN inline uint32_t weight_of(uint32_t distance) {
  return bits_of(exact_exp(-static_cast<float>(static_cast<int32_t>(distance)) * (1 / kStepsPerNat)));
}
DP_FN inline uint64_t mass_of_weight(uint32_t weight) {
  const uint64_t mantissa = (weight & 0x7FFFFFu) | 0x800000u;
  return mantissa << (kMassBits - 23) >> least(127 - (weight >> 23), 63u);  // a weight of 0 has a mass of 0
}
DP_FN inline uint64_t mass_of(uint32_t distance) { return mass_of_weight(weight_of(distance)); }

// What a team shares while it samples one row.
struct SamplerMemory {
  static constexpr int kHalfBits = 12, kBins = 1 << kHalfBits;  // bins take one half of a distance's bits at a time
  static constexpr int kRowsOfLane = (cfg::kVocab + kLanes - 1) / kLanes;
  uint64_t best[kLanes];
  uint64_t sum[most(kLanes, kRowsOfLane)];
  uint64_t bin[kBins];
  uint64_t rest;  // beyond what comes before `found`
  int32_t found;
};

template <class Team>
class Sampler {
 public:
  DP_FN Sampler(Team& team, SamplerMemory& memory) : team_(team), memory_(memory) {}

  // A token by `logits` [n]. -1: they hold a NaN or plus infinity, or nothing but minus infinities.
  DP_FN int32_t draw(const float* logits, int n, const Sampling& params, uint32_t position) {
    const Peak peak = find_peak(logits, n);
    if (peak.token < 0 || params.temperature < kGreedyBelow || params.top_k == 1) return peak.token;
    const Row row = {logits, n, peak.logit, kStepsPerNat / params.temperature};
    return pick(row, limit_of(row, params), random_word(params.seed, position));
  }

  // The scale of `logits` [n], and the `count` most probable ids, equal ones in their order, with their logprobs; id -1
  // where no more can be drawn. Nothing if no token can be.
  DP_FN Scale rank(const float* logits, int n, int count, TopLogprobs& top) {
    const Peak peak = find_peak(logits, n);
    if (peak.token < 0) return {};
    const auto mass = static_cast<int64_t>(sum_lanes({logits, n, peak.logit, kStepsPerNat}, kFar));
    const Scale scale = {true, peak.logit, exact_log(static_cast<float>(mass) * (1.0f / (int64_t{1} << kMassBits)))};
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

  struct Peak {
    int32_t token;
    float logit;
  };

  // Logits [n] and what makes distances of them.
  struct Row {
    const float* logits;
    int n;
    float peak, steps_per_unit;
    DP_FN uint32_t distance(float logit) const { return dp::distance(peak - logit, steps_per_unit); }
  };

  // first(x, own), then then(item, own), for the items of this member's lanes, x being the item's value; `own` numbers
  // the lanes from 0. Of several lanes all have `first` before `then`, so that the host makes vectors of it.
  template <class First, class Then>
  DP_FN void lanes(const float* values, int n, First first, Then then) {
    if constexpr (Team::kLanesEach == 1) {
      team_.over(values, n, [&](int i, float x) { first(x, 0), then(i, 0); });
    } else {
      const int mine = kLanes / team_.count();
      for (int base = team_.index() * mine; base < n; base += kLanes) {
        const int end = least(mine, n - base);
        for (int own = 0; own < end; ++own) first(values[base + own], own);
        for (int own = 0; own < end; ++own) then(base + own, own);
      }
    }
  }

  template <class F>
  DP_FN void own_lanes(F f) {
    const int mine = kLanes / team_.count();
    for (int own = 0; own < mine; ++own) f(team_.index() * mine + own, own);
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
    int32_t x[Team::kLanesEach], best[Team::kLanesEach], id[Team::kLanesEach], bad[Team::kLanesEach];
    own_lanes([&](int, int own) { best[own] = lowest, id[own] = -1, bad[own] = 0; });
    lanes(
        logits, n, [&](float logit, int own) { x[own] = ordered(logit); },
        [&](int i, int own) {
          id[own] = x[own] > best[own] ? i : id[own];
          best[own] = most(best[own], x[own]);
          bad[own] |= (x[own] >= beyond) | (x[own] < lowest);
        });
    own_lanes([&](int l, int own) {
      memory_.best[l] = bad[own] != 0 ? kBad : id[own] < 0 ? Least::kEmpty : place_of(best[own], id[own]);
    });
    const uint64_t first = best_of_lanes();
    if (first == kBad || first == Least::kEmpty) return {-1, 0.0f};
    return {id_of(first), logit_of(first)};
  }

  // Masses of the tokens to `limit`: their sum, and before each lane that of the lanes before it in memory_.sum.
  DP_FN uint64_t sum_lanes(const Row& row, uint32_t limit) {
    uint64_t sum[Team::kLanesEach];
    uint32_t weight[Team::kLanesEach];
    own_lanes([&](int, int own) { sum[own] = 0; });
    lanes(
        row.logits, row.n,
        [&](float logit, int own) {
          const uint32_t d = row.distance(logit);
          weight[own] = weight_of(d) & (d <= limit ? ~0u : 0u);
        },
        [&](int, int own) { sum[own] += mass_of_weight(weight[own]); });
    own_lanes([&](int l, int own) { memory_.sum[l] = sum[own]; });
    return team_.scan(memory_.sum, kLanes);
  }

  // What bins add up of each token: a word of its distance, and what that counts in a sum.
  struct Count {
    DP_FN uint32_t operator()(uint32_t) const { return 1; }
    static DP_FN uint64_t sum(uint32_t one) { return one; }
  };
  struct Mass {
    DP_FN uint32_t operator()(uint32_t distance) const { return weight_of(distance); }
    static DP_FN uint64_t sum(uint32_t weight) { return mass_of_weight(weight); }
  };

  // The limit that the parameters set.
  DP_FN uint32_t limit_of(const Row& row, const Sampling& params) {
    uint32_t limit = kFar;
    if (params.min_p > 0x1p-44f) limit = distance(exact_log(1.0f / params.min_p), kStepsPerNat);
    if (params.top_k > 0) {
      const auto wanted = static_cast<uint64_t>(params.top_k);
      limit = reach(row, limit, Count(), [&](uint64_t) { return wanted; });
    }
    if (params.top_p < 1.0f) {
      const auto share = static_cast<uint64_t>(params.top_p * 0x1p32f) << 32;
      limit = reach(row, limit, Mass(), [&](uint64_t all) { return most<uint64_t>(1, high_product(all, share)); });
    }
    return limit;
  }

  // The least distance to which tokens come to what is wanted of all to `limit`, as `measure` weighs them; `limit` if
  // they do not.
  template <class Measure, class Wanted>
  DP_FN uint32_t reach(const Row& row, uint32_t limit, Measure measure, Wanted wanted) {
    constexpr int kHalf = SamplerMemory::kHalfBits;
    fill_bins(row, measure, [&](uint32_t d) { return d <= limit ? static_cast<int32_t>(d >> kHalf) : kNowhere; });
    if (!find_bin(wanted)) return limit;
    const auto upper = static_cast<uint32_t>(memory_.found);
    const uint64_t rest = memory_.rest;
    fill_bins(row, measure, [&](uint32_t d) {
      return d <= limit && d >> kHalf == upper ? static_cast<int32_t>(d % SamplerMemory::kBins) : kNowhere;
    });
    find_bin([&](uint64_t) { return rest; });
    return upper << kHalf | static_cast<uint32_t>(memory_.found);
  }

  static constexpr int32_t kNowhere = -1;

  // Adds up each token's measure in the bin of its distance.
  template <class Measure, class BinOf>
  DP_FN void fill_bins(const Row& row, Measure measure, BinOf bin_of) {
    int32_t bin[Team::kLanesEach];
    uint32_t size[Team::kLanesEach];
    team_.each(SamplerMemory::kBins, [&](int i) { memory_.bin[i] = 0; });
    team_.sync();
    lanes(
        row.logits, row.n,
        [&](float logit, int own) {
          const uint32_t d = row.distance(logit);
          bin[own] = bin_of(d);
          size[own] = measure(d);
        },
        [&](int, int own) {
          if (bin[own] != kNowhere) team_.add(memory_.bin[bin[own]], Measure::sum(size[own]));
        });
    team_.sync();
  }

  // The first bin up to whose end the bins come to what is wanted of them all, and what of that is left for it; false
  // if there is none.
  template <class Wanted>
  DP_FN bool find_bin(Wanted wanted_of) {
    constexpr int kShare = SamplerMemory::kBins / kLanes;
    team_.each(kLanes, [&](int l) {
      uint64_t sum = 0;
      for (int k = 0; k < kShare; ++k) sum += memory_.bin[l * kShare + k];
      memory_.sum[l] = sum;
    });
    const uint64_t all = team_.scan(memory_.sum, kLanes), wanted = wanted_of(all);
    if (all < wanted) return false;
    team_.each(kLanes, [&](int l) {
      const uint64_t before = memory_.sum[l], through = l + 1 < kLanes ? memory_.sum[l + 1] : all;
      if (before >= wanted || through < wanted) return;
      uint64_t rest = wanted - before;
      int bin = l * kShare;
      while (memory_.bin[bin] < rest) rest -= memory_.bin[bin++];
      memory_.found = bin;
      memory_.rest = rest;
    });
    team_.sync();
    return true;
  }

  // The token at which the cumulative mass, lane after lane, passes the fraction `random` / 2^32 of the whole.
  DP_FN int32_t pick(const Row& row, uint32_t limit, uint32_t random) {
    const uint64_t all = sum_lanes(row, limit), wanted = high_product(all, uint64_t{random} << 32);
    find(kLanes, all, wanted);
    const int lane = memory_.found, rows = (row.n - lane + kLanes - 1) / kLanes;
    const uint64_t rest = memory_.rest;
    team_.sync();
    team_.each(rows, [&](int i) {
      const uint32_t d = row.distance(row.logits[lane + i * kLanes]);
      memory_.sum[i] = d <= limit ? mass_of(d) : 0;
    });
    find(rows, team_.scan(memory_.sum, rows), rest);
    return lane + memory_.found * kLanes;
  }

  // Which of n sums holds the unit `wanted` of `all`; memory_.sum is what comes before each.
  DP_FN void find(int n, uint64_t all, uint64_t wanted) {
    team_.each(n, [&](int i) {
      const uint64_t before = memory_.sum[i], through = i + 1 < n ? memory_.sum[i + 1] : all;
      if (before > wanted || through <= wanted) return;
      memory_.found = i;
      memory_.rest = wanted - before;
    });
    team_.sync();
  }

  Team& team_;
  SamplerMemory& memory_;
};

}  // namespace dp
