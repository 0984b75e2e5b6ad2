// What the benchmark of the scheduler adds to its kernels: the phases of a step on the SM's clock, a kernel that does
// nothing, which is what any node of a graph costs, and one that leaves nothing of the scheduler in the L2 cache.
#include "common/scheduler.hpp"
#include "cuda/desk.cuh"

namespace dp {

// dp_schedule with the clock's cycles from phase to phase: begin, retire, poll, admit, lay out, publish, end.
extern "C" {
__constant__ int64_t dp_schedule_phases_shared_bytes = sizeof(Seat);
}

extern "C" __global__ void __launch_bounds__(kDeskThreads)
    dp_schedule_phases(StateMemory* state, StepBuffers* step, RingMemory* rings, int64_t* cycles) {
  int64_t last = clock64();
  const auto passed = [&](int phase) {
    asm volatile("barrier.sync.aligned 1, %0;" ::"n"(CtaTeam::kThreads) : "memory");
    const int64_t now = clock64();
    if (threadIdx.x == 0) cycles[phase] = now - last;
    last = now;
  };
  at_desk(*state, *step, *rings, [&](DeskTeam& team, State& s) {
    const auto sights = look(team, s, *rings);
    passed(0);
    retire(team, s, *step, *rings);
    passed(1);
    poll(team, s, *step, *rings, sights);
    passed(2);
    team.beside(0);
    admit(team, s, *step);
    passed(3);
    lay_out(team, s, *step);
    passed(4);
    report(team, s, rings->status);
    team.rejoin();
    passed(5);
  });
  if (threadIdx.x < CtaTeam::kThreads) passed(6);
}

extern "C" __global__ void __launch_bounds__(CtaTeam::kThreads) dp_nothing() {}

// Reads `words` [n]; the sum goes where nobody looks.
extern "C" __global__ void __launch_bounds__(1024) dp_read(const float* words, int64_t n, float* sum) {
  float own = 0.0f;
  for (int64_t i = int64_t{blockIdx.x} * 1024 + threadIdx.x; i < n; i += int64_t{gridDim.x} * 1024) own += words[i];
  if (own == 0.123f) *sum = own;
}

}  // namespace dp
