// Who attends to blocks in host memory: the card, which recalls them, or CPU workers where they lie; by roofline and by
// what was seen. dualpace/plan/cooperation.py has the same with its reasons, for what a plan says, and is held to this.
#pragma once
#include <cstdint>

#include "common/layout.hpp"
#include "common/portable.hpp"

namespace dp {

constexpr double kBlockBytes = 2.0 * cfg::kKvHeads * cfg::kHeadDim * cfg::kPageSize * cfg::kElementBytes;
// Bytes of partial results that come over the link for each byte that workers attend to.
constexpr double kAnswerShare = cfg::kHeads * (cfg::kHeadDim + 1) * 4.0 / (cfg::kItemBlocks * kBlockBytes);
// How much of a new rate is believed; the trust below which workers get one item every kProbed turns and no more.
constexpr double kBelieved = 1.0 / 8, kLeastTrust = 1.0 / 64;
constexpr int kProbed = 64;

// Bytes a second of the link, of host memory, and of one worker's attention; seconds before an answer is back.
struct HostRates {
  double link, dram, worker, wait;
};

// Blocks of a layer by who attends to them, and seconds until the last one is done.
struct Division {
  int32_t recalled, attended;
  double seconds;
};

// What turns of layers showed: bytes and seconds of recalls, and of each worker; items by how they ended.
struct HostSeen {
  double recalled, recall_seconds, attended, worker_seconds;
  int32_t answered, late;
};

struct HostBelief {
  HostRates rates;
  double trust;  // the share of the workers that is counted on
};

DP_FN inline double host_seconds(int blocks, int attended, const HostRates& rates, double workers) {
  const double over_link = (blocks - attended + kAnswerShare * attended) * kBlockBytes / rates.link;
  const double by_workers = attended > 0 ? rates.wait + attended * kBlockBytes / (workers * rates.worker) : 0;
  return most(most(over_link, by_workers), blocks * kBlockBytes / rates.dram);
}

// The division that takes least, with the fewest blocks for workers; these may be a part of one, or 0.
DP_FN inline Division divide(int blocks, const HostRates& rates, double workers) {
  Division best = {blocks, 0, host_seconds(blocks, 0, rates, workers)};
  if (workers <= 0) return best;
  const double link = kBlockBytes / rates.link, worker = kBlockBytes / (workers * rates.worker);
  const double balanced = (blocks * link - rates.wait) / (worker + (1 - kAnswerShare) * link);
  const double needed = blocks * (1 - rates.link / rates.dram) / (1 - kAnswerShare);
  const int low = static_cast<int>(most(least(least(balanced, needed), static_cast<double>(blocks)), 0.0));
  for (int attended = low; attended <= least(low + 1, blocks); ++attended) {
    const double seconds = host_seconds(blocks, attended, rates, workers);
    if (seconds < best.seconds) best = {blocks - attended, attended, seconds};
  }
  return best;
}

DP_FN inline double blended(double rate, double amount, double seconds) {
  return seconds > 0 ? rate + kBelieved * (amount / seconds - rate) : rate;
}

DP_FN inline HostBelief learn(const HostBelief& belief, const HostSeen& seen) {
  HostBelief after = belief;
  after.rates.link = blended(belief.rates.link, seen.recalled, seen.recall_seconds);
  after.rates.worker = blended(belief.rates.worker, seen.attended, seen.worker_seconds);
  if (seen.late > 0) {
    after.trust = belief.trust * seen.answered / (seen.answered + seen.late);
  } else if (seen.answered > 0) {
    after.trust = least(most(2 * belief.trust, kLeastTrust), 1.0);
  }
  return after;
}

// Of `allowed` workers, those that are counted on.
DP_FN inline double trusted(const HostBelief& belief, int allowed) {
  return belief.trust >= kLeastTrust ? allowed * belief.trust : 0;
}

// Whether workers that are not trusted get an item in this turn.
DP_FN inline bool probes(const HostBelief& belief, uint64_t turn) {
  return belief.trust < kLeastTrust && turn % kProbed == 0;
}

}  // namespace dp
