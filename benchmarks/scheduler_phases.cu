// What the benchmark of the scheduler adds to its kernels: the phases of a step on the SM's clock, a kernel that does
// nothing, which is what any node of a graph costs, and one that leaves nothing of the scheduler in the L2 cache.
#include "common/scheduler.hpp"

namespace dp {

// dp_schedule with the clock's cycles from phase to phase: retire, poll, admit, lay out, publish.
extern "C" __global__ void __launch_bounds__(CtaTeam::kThreads)
    dp_schedule_phases(State* state, StepBuffers* step, RingMemory* rings, int64_t* cycles) {
  __shared__ CtaTeam::Meeting meeting;
  CtaTeam team(meeting);
  const Sights<CtaTeam> sights = look(team, *state, *rings);
  int64_t last = clock64();
  const auto passed = [&](int phase) {
    team.sync();
    const int64_t now = clock64();
    if (team.leader()) cycles[phase] = now - last;
    last = now;
  };
  retire(team, *state, *step, *rings);
  passed(0);
  poll(team, *state, *step, *rings, sights);
  passed(1);
  admit(team, *state, *step);
  passed(2);
  lay_out(team, *state, *step);
  passed(3);
  report(team, *state, rings->status);
  announce(team, *state, *rings);
  passed(4);
}

extern "C" __global__ void __launch_bounds__(CtaTeam::kThreads) dp_nothing() {}

// Reads `words` [n]; the sum goes where nobody looks.
extern "C" __global__ void __launch_bounds__(1024) dp_read(const float* words, int64_t n, float* sum) {
  float own = 0.0f;
  for (int64_t i = int64_t{blockIdx.x} * 1024 + threadIdx.x; i < n; i += int64_t{gridDim.x} * 1024) own += words[i];
  if (own == 0.123f) *sum = own;
}

}  // namespace dp
