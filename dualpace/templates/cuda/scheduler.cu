// The scheduler and the sampler as kernels: the shared phases with CTAs as teams.
#include "common/sample.hpp"
#include "common/scheduler.hpp"
#include "cuda/desk.cuh"

namespace dp {
namespace {

// The least pace of the heartbeat while there is nothing to do, and the longest pause between two looks at the rings.
constexpr uint64_t kBeatNs = 20'000'000;
constexpr unsigned kNapNs = 16'000;

__device__ uint64_t now_ns() {
  uint64_t now;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
  return now;
}

// Until a step would find something in the rings, the host says stop, or the heartbeat is due. One thread.
__device__ void doze(const State& state, const RingMemory& rings, const Drive& drive) {
  const uint64_t due = now_ns() + kBeatNs;
  for (unsigned nap = 0; now_ns() < due; nap = least(2 * nap + 100, kNapNs)) {
    if (glance(drive.stop) != 0 || work_waits(state, rings)) return;
    __nanosleep(nap);
  }
}

}  // namespace

extern "C" {
__constant__ int64_t dp_state_bytes = sizeof(StateMemory);  // what the host has to allocate, zeroed
__constant__ int64_t dp_schedule_shared_bytes = sizeof(Seat), dp_drive_shared_bytes = sizeof(Seat);
}

// Puts `state` and the lanes' `step`, all zeroed, into their first state. Ids from `vocabulary` on are padding. One
// thread.
extern "C" __global__ void __launch_bounds__(1) dp_start(StateMemory* state, StepBuffers* step, int32_t vocabulary) {
  State s(*state);
  start(s, step, vocabulary);
}

// Takes what the last step sampled, reads the rings and lays out the next step. One CTA.
extern "C" __global__ void __launch_bounds__(kDeskThreads)
    dp_schedule(StateMemory* state, StepBuffers* step, RingMemory* rings) {
  at_desk(*state, *step, *rings, [&](DeskTeam& team, State& s) { schedule(team, s, *step, *rings); });
}

// The last node of every step program: schedules until there is a step, and launches its program, which begins when the
// one that this runs in has ended. Without a launch, because the host says stop or there was nothing to do for kParkNs,
// nothing is left on the device. One CTA.
extern "C" __global__ void __launch_bounds__(kDeskThreads)
    dp_drive(StateMemory* state, StepBuffers* step, RingMemory* rings, Drive* drive) {
  __shared__ bool stopped, parked;
  at_desk(*state, *step, *rings, [&](DeskTeam& team, State& s) {
    const uint64_t began = now_ns();
    for (;;) {
      schedule(team, s, *step, *rings);
      if (team.leader()) {
        stopped = glance(drive->stop) != 0;
        parked = !stopped && step->rows == 0 && cfg::kParkNs != 0 && now_ns() - began > cfg::kParkNs && park(s, *rings);
      }
      team.sync();
      if (stopped || parked || step->rows > 0) break;
      if (team.leader()) doze(s, *rings, *drive);
      team.sync();
    }
  });
  if (threadIdx.x != 0) return;
  if (parked) show(drive->parked, 1u);
  if (stopped || parked) return;
  const auto program = reinterpret_cast<cudaGraphExec_t>(drive->program[step->program]);
  if (const cudaError_t error = cudaGraphLaunch(program, cudaStreamGraphTailLaunch); error != cudaSuccess) {
    show(drive->error, static_cast<uint32_t>(error));
  }
}

// Tells frontends what their status shows them; stopping ends what is running for them. One thread.
extern "C" __global__ void __launch_bounds__(1) dp_announce(RingMemory* rings, uint32_t ready, uint32_t stopped) {
  publish(rings->status.ready, ready);
  publish(rings->status.stopped, stopped);
}

// Samples the step's rows from `logits` [samples][stride]; `scratch` [grid][kVocab]. Grid: any number of CTAs.
extern "C" __global__ void __launch_bounds__(SamplerTeam::kThreads, 2)
    dp_sample(StateMemory* state, StepBuffers* step, const float* logits, int64_t stride, float* scratch) {
  __shared__ SamplerTeam::Meeting meeting;
  __shared__ SamplerMemory memory;
  SamplerTeam team(meeting);
  const State s(*state);
  for (unsigned i = blockIdx.x; i < step->samples; i += gridDim.x) {
    sample(team, s, *step, static_cast<int>(i), logits + i * stride, scratch + int64_t{blockIdx.x} * cfg::kVocab,
           memory);
    team.sync();
  }
}

}  // namespace dp
