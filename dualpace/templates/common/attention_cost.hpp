// What one layer's decode attention costs by each route, and the route and split size that cost least. The same
// formulas are in dualpace/plan/attention_cost.py, for plans.
//
// A roofline: all keys at the bandwidth of memory. To it is added what the CTA that reads most still has to read when
// the others are done, and what does not move KV: a start, every partial result, and the merge of a slice's, one after
// the other. Constants are a kernel's, whichever list of tasks it does.
#pragma once
#include "common/layout.hpp"
#include "common/portable.hpp"
#include "common/team.hpp"

namespace dp {

// Workqueues end tasks at multiples of this many keys: what the warps of a CTA read at a time.
constexpr int kTaskKeys = 64;

// Splits are of cfg::kSplitTokens keys, or of 2, 4, ... times as many.
constexpr int kSplitSizes = 8;

// The keys [begin, end) that a token sees. Those of a token of a prefill chunk are not split: such
// tokens fill the GPU as they are.
struct SeenKeys {
  int32_t begin;
  int32_t end;
  bool of_chunk;
  // Ranges of `size` keys, from multiples of it on, that hold some of these, and the first of them.
  DP_FN int32_t ranges(int32_t size) const { return (end + size - 1) / size - begin / size; }
  DP_FN int32_t first_range(int32_t size) const { return begin / size; }
  DP_FN int32_t splits(int32_t size) const { return of_chunk ? 1 : ranges(size); }
};

// A batch as its cost sees it: each of `tokens` tokens has `slices` slices, each of which reads all keys of the token.
struct BatchKeys {
  int32_t tokens;
  int32_t seeing;  // of these, any keys
  int32_t slices;
  int64_t keys;    // that all slices read
  int64_t ranges;  // of kTaskKeys, likewise
  int32_t most;    // that one slice reads
};

// If every token sees keys.
template <class Team, class SeenBy>
DP_FN BatchKeys batch_keys(Team& team, int tokens, int slices, const SeenBy& seen_by) {
  // Two sums in one: keys above ranges.
  const uint64_t sums = team.reduce(
      tokens,
      [&](int t) {
        const SeenKeys seen = seen_by(t);
        return static_cast<uint64_t>(seen.end - seen.begin) << 32 | static_cast<uint64_t>(seen.ranges(kTaskKeys));
      },
      Sum());
  const uint64_t largest =
      team.reduce(tokens, [&](int t) { return static_cast<uint64_t>(seen_by(t).end - seen_by(t).begin); }, Most());
  return {tokens,
          tokens,
          slices,
          static_cast<int64_t>(sums >> 32) * slices,
          static_cast<int64_t>(sums & 0xFFFFFFFFu) * slices,
          static_cast<int32_t>(largest)};
}

// What a route makes of a batch. Keys count once for each slice that reads them.
struct RouteWork {
  float keys;      // read by all CTAs
  float tail;      // of the CTA that reads most, beyond an equal share
  float partials;  // results to merge
  float depth;     // of the slice that has most
};

// A kernel's constants, in seconds, measured by `dualpace calibrate`.
struct KernelCost {
  float start;     // of every layer: launch, first loads, last merge
  float key;       // of a key of a slice, when all CTAs read
  float tail_key;  // of a key of a slice for the CTA that reads it
  float partial;   // of a partial result
  float merge;     // of a partial result for the CTA that merges its slice
};

DP_FN inline float route_seconds(const KernelCost& cost, const RouteWork& work) {
  return cost.start + work.keys * cost.key + work.tail * cost.tail_key + work.partials * cost.partial +
         work.depth * cost.merge;
}

DP_FN inline float tail_of(int64_t most_keys, const BatchKeys& batch, int ctas) {
  return static_cast<float>(most(most_keys - batch.keys / ctas, int64_t{0}));
}

DP_FN inline int64_t shared_out(int64_t n, int64_t parts) { return (n + parts - 1) / parts; }

// Shares of one slice, all of which are cut alike.
DP_FN inline int64_t slice_shares(const BatchKeys& batch, int ctas) { return most(ctas / batch.slices, 1); }

// Every share of a slice but the first may cut a task in two; what it cuts is merged.
DP_FN inline RouteWork workqueue_work(const BatchKeys& batch, int ctas) {
  const int64_t tokens = batch.seeing, ranges = batch.ranges / batch.slices;
  const int64_t share = most(shared_out(ranges, slice_shares(batch, ctas)), int64_t{1});
  const int64_t shares = shared_out(ranges, share), cuts = most(shares - 1, int64_t{0});
  const int64_t depth = least(shared_out(shared_out(batch.most, kTaskKeys), share) + 1, shares);
  return {.keys = static_cast<float>(batch.keys),
          .tail = tail_of(share * kTaskKeys, batch, ctas),
          .partials = static_cast<float>(batch.slices * (cuts + least(cuts, tokens))),
          .depth = static_cast<float>(depth > 1 ? depth : 0)};
}

// Splits of all tokens, and tokens that are whole.
struct Splits {
  int64_t all;
  int64_t whole;
};

template <class Team, class SeenBy>
DP_FN Splits splits_of(Team& team, const BatchKeys& batch, int size, const SeenBy& seen_by) {
  // Two sums in one: whole tokens above splits.
  const uint64_t sums = team.reduce(
      batch.tokens,
      [&](int t) {
        const auto splits = static_cast<uint64_t>(seen_by(t).splits(size));
        return uint64_t{splits == 1 ? 1u : 0u} << 32 | splits;
      },
      Sum());
  return {static_cast<int64_t>(sums & 0xFFFFFFFFu), static_cast<int64_t>(sums >> 32)};
}

// As few as there can be.
DP_FN inline Splits fewest_splits(const BatchKeys& batch, int size) {
  return {most(shared_out(batch.keys / batch.slices, size), int64_t{batch.tokens}), batch.tokens};
}

// Splits of `size` keys. The CTA that reads most is taken to have splits as long as there are any.
DP_FN inline RouteWork split_work(const BatchKeys& batch, int size, int ctas, Splits splits) {
  const int64_t tasks = shared_out(splits.all, slice_shares(batch, ctas)), depth = shared_out(batch.most, size);
  return {.keys = static_cast<float>(batch.keys),
          .tail = tail_of(tasks * least(size, batch.most), batch, ctas),
          .partials = static_cast<float>((splits.all - splits.whole) * batch.slices),
          .depth = static_cast<float>(depth > 1 ? depth : 0)};
}

struct KernelCosts {
  KernelCost own;
  KernelCost flashinfer;
};

struct RouteChoice {
  Route route;
  int32_t split_tokens;  // 0 but on the split route
  float seconds;
};

// What an engine can run: CTAs that the GPU holds at once, of each kernel; 0 for one that is not there.
struct RouteCtas {
  int32_t own;
  int32_t flashinfer;
};

// The cheapest route. Of equal ones the first: workqueue, splits from the smallest on, flashinfer.
template <class Team, class SeenBy>
DP_FN RouteChoice cheapest_route(Team& team, const BatchKeys& batch, RouteCtas ctas, const KernelCosts& costs,
                                 const SeenBy& seen_by) {
  RouteChoice best = {Route::kWorkqueue, 0, route_seconds(costs.own, workqueue_work(batch, ctas.own))};
  for (int i = 0, size = cfg::kSplitTokens; i < kSplitSizes; ++i, size *= 2) {
    // A size is only looked at closely if it could be the cheapest: that takes the team longer than all the rest.
    if (route_seconds(costs.own, split_work(batch, size, ctas.own, fewest_splits(batch, size))) < best.seconds) {
      const Splits splits = splits_of(team, batch, size, seen_by);
      const float seconds = route_seconds(costs.own, split_work(batch, size, ctas.own, splits));
      if (seconds < best.seconds) best = {Route::kSplit, size, seconds};
    }
    if (size >= batch.most) break;
  }
  if (ctas.flashinfer > 0) {
    const float seconds = route_seconds(costs.flashinfer, workqueue_work(batch, ctas.flashinfer));
    if (seconds < best.seconds) best = {Route::kFlashinfer, 0, seconds};
  }
  return best;
}

}  // namespace dp
