// The division of blocks between link and CPU workers as a device has it.
#include "common/division.hpp"

extern "C" {

double block_bytes() { return dp::kBlockBytes; }
double answer_share() { return dp::kAnswerShare; }
void divide(int blocks, const dp::HostRates* rates, double workers, dp::Division* found) {
  *found = dp::divide(blocks, *rates, workers);
}
void learn(dp::HostBelief* belief, const dp::HostSeen* seen) { *belief = dp::learn(*belief, *seen); }
double trusted(const dp::HostBelief* belief, int allowed) { return dp::trusted(*belief, allowed); }
int probes(const dp::HostBelief* belief, uint64_t turn) { return dp::probes(*belief, turn) ? 1 : 0; }
}
