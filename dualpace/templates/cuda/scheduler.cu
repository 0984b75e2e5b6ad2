// The scheduler and the sampler as kernels: the shared phases with CTAs as teams.
#include "common/sample.hpp"
#include "common/scheduler.hpp"

namespace dp {

extern "C" {
__constant__ int64_t dp_state_bytes = sizeof(State);  // what the host has to allocate, zeroed
}

// Puts `state` and `step`, both zeroed, into their first state. Ids from `vocabulary` on are padding. One thread.
extern "C" __global__ void __launch_bounds__(1) dp_start(State* state, StepBuffers* step, int32_t vocabulary) {
  start(*state, *step, vocabulary);
}

// Takes what the last step sampled, reads the rings and lays out the next step. One CTA.
extern "C" __global__ void __launch_bounds__(CtaTeam::kThreads)
    dp_schedule(State* state, StepBuffers* step, RingMemory* rings) {
  __shared__ CtaTeam::Meeting meeting;
  CtaTeam team(meeting);
  schedule(team, *state, *step, *rings);
}

// Samples the step's rows from `logits` [samples][stride]; `scratch` [grid][kVocab]. Grid: any number of CTAs.
extern "C" __global__ void __launch_bounds__(CtaTeam::kThreads)
    dp_sample(const State* state, StepBuffers* step, const float* logits, int64_t stride, float* scratch) {
  __shared__ CtaTeam::Meeting meeting;
  __shared__ SamplerMemory memory;
  CtaTeam team(meeting);
  for (unsigned i = blockIdx.x; i < step->samples; i += gridDim.x) {
    sample(team, *state, *step, static_cast<int>(i), logits + i * stride, scratch + int64_t{blockIdx.x} * cfg::kVocab,
           memory);
    team.sync();
  }
}

}  // namespace dp
