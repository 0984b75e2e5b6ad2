// A publisher and collector on a device: one CTA gives a row's blocks to workers and waits for all of them, or so long.
#include "common/cooperate.hpp"
#include "common/division.hpp"

namespace {

__device__ uint64_t now_ns() {
  uint64_t now;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
  return now;
}

}  // namespace

extern "C" {

// Leaves out [partial][kHeads][kHeadDim] and lse [partial][kHeads] of what was answered, and in `found` the
// nanoseconds, the items and those that were withdrawn after `patience_ns`. `ledger` and `scratch` are zeroed before
// the first call.
__global__ void __launch_bounds__(dp::CtaTeam::kThreads)
    drive(dp::Cooperation* c, dp::WorkLedger* ledger, dp::WorkScratch* scratch, int workers, const float* query,
          const int32_t* blocks, int count, float* out, float* lse, uint64_t patience_ns, uint64_t* found) {
  __shared__ dp::CtaTeam::Meeting meeting;
  __shared__ uint64_t now;
  dp::CtaTeam team(meeting);
  const uint64_t ended = ledger->answered + ledger->withdrawn;
  if (team.leader()) now = now_ns();
  team.sync();
  const uint64_t start = now, due = start + patience_ns;
  dp::ask(team, *c, 0, query);
  int given = 0;
  uint64_t items = 0, withdrawn = 0;
  while (now < due + patience_ns && (given < count || ledger->answered + ledger->withdrawn < ended + items)) {
    const int begin = given;
    const int more = dp::give(
        team, *c, *ledger, 0, 1, 0, count - begin, [&](int b) { return blocks[begin + b]; }, static_cast<int>(items),
        due);
    given += more;
    items += static_cast<uint64_t>(dp::work_items(more));
    dp::collect(team, *c, *ledger, *scratch, workers, [&](const dp::AwaitedWork& work, const dp::WorkAnswer& answer) {
      constexpr int kSize = dp::cfg::kHeads * dp::cfg::kHeadDim;
      team.each(kSize, [&](int i) {
        out[work.partial * kSize + i] = answer.out[i / dp::cfg::kHeadDim][i % dp::cfg::kHeadDim];
      });
      team.each(dp::cfg::kHeads, [&](int h) { lse[work.partial * dp::cfg::kHeads + h] = answer.lse[h]; });
    });
    if (team.leader()) now = now_ns();
    team.sync();
    const uint64_t passed = now;
    withdrawn += static_cast<uint64_t>(dp::withdraw(
        team, *c, *ledger, *scratch, [passed](const dp::AwaitedWork& work) { return work.due <= passed; }));
  }
  if (team.leader()) {
    found[0] = now - start;
    found[1] = items;
    found[2] = withdrawn;
  }
}

// The division, for the compiler to see.
__global__ void divide(int blocks, const dp::HostBelief* belief, int workers, dp::Division* found) {
  *found = dp::divide(blocks, belief->rates, dp::trusted(*belief, workers));
}
}
