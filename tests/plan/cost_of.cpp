// The cost model of attention as the device has it, for one thread.
#include "common/attention_cost.hpp"

using namespace dp;

extern "C" void taken(const SeenKeys* seen, int tokens, int slices, RouteCtas ctas, const KernelCosts* costs,
                      RouteChoice* cheapest, float* workqueue, float* splits) {
  SerialTeam team;
  const auto seen_by = [&](int token) { return seen[token]; };
  const BatchKeys batch = batch_keys(team, tokens, slices, seen_by);
  *cheapest = cheapest_route(team, batch, ctas, *costs, seen_by);
  *workqueue = route_seconds(costs->own, workqueue_work(batch, ctas.own));
  for (int i = 0; i < kSplitSizes; ++i) {
    const int size = cfg::kSplitTokens << i;
    const Splits counted = splits_of(team, batch, size, seen_by);
    splits[i] = route_seconds(costs->own, split_work(batch, size, ctas.own, counted));
  }
}
