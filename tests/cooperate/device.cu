// Publisher and collector as a kernel of a device has them.
#include "common/cooperate.hpp"
#include "common/division.hpp"

extern "C" __global__ void publish_and_collect(dp::Cooperation* c, dp::WorkLedger* ledger, dp::WorkScratch* scratch,
                                               const float* query, const int32_t* blocks, int count, float* out,
                                               uint64_t now, const dp::HostBelief* belief, dp::Division* found) {
  if (threadIdx.x == 0) *found = dp::divide(count, belief->rates, dp::trusted(*belief, 16));
  __shared__ dp::CtaTeam::Meeting meeting;
  dp::CtaTeam team(meeting);
  dp::ask(team, *c, 0, query);
  dp::give(team, *c, *ledger, 0, 1, 0, count, [&](int b) { return blocks[b]; }, 0, now + 1);
  dp::collect(
      team, *c, *ledger, *scratch, dp::kMostWorkers, [&](const dp::AwaitedWork& work, const dp::WorkAnswer& answer) {
        team.each(dp::cfg::kHeads * dp::cfg::kHeadDim,
                  [&](int i) { out[work.partial * dp::cfg::kHeads * dp::cfg::kHeadDim + i] = answer.out[0][i]; });
      });
  dp::withdraw(team, *c, *ledger, *scratch, [now](const dp::AwaitedWork& work) { return work.due <= now; });
}
