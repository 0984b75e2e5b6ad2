// The C interface of the scheduler and the sampler for an engine that a host drives. One thread calls it at a time.
#include <memory>
#include <vector>

#include "common/sample.hpp"
#include "common/scheduler.hpp"
#include "host/backoff.hpp"

namespace {

// Between two looks for requests, at rest: a request waits as long.
constexpr int64_t kRequestPauseUs = 5'000;

// What one thread needs to sample.
struct Bench {
  dp::SamplerMemory memory;
  std::vector<float> scratch = std::vector<float>(dp::cfg::kVocab);
};

struct Engine {
  dp::RingMemory& memory;
  std::unique_ptr<dp::StateMemory> state_memory = std::make_unique<dp::StateMemory>();
  std::unique_ptr<dp::State> state = std::make_unique<dp::State>(*state_memory);
  std::unique_ptr<dp::StepBuffers[]> lanes = std::make_unique<dp::StepBuffers[]>(dp::kLaneCount);
  dp::StepBuffers& buffers = lanes[static_cast<size_t>(dp::Lane::kFast)];
  std::vector<Bench> benches = {};
  dp::Backoff backoff{kRequestPauseUs};
};

Engine& engine_of(void* handle) { return *static_cast<Engine*>(handle); }

}  // namespace

extern "C" {

uint64_t dp_engine_layout() { return dp::kLayoutHash; }

// `ring_memory` is a mapped RingMemory and outlives the engine; ids from `vocabulary` on are never sampled.
void* dp_engine_create(void* ring_memory, uint32_t vocabulary, uint32_t threads) {
  std::unique_ptr<Engine> engine(new Engine{*static_cast<dp::RingMemory*>(ring_memory)});
  engine->benches.resize(dp::most(1u, dp::least(threads, static_cast<uint32_t>(dp::cfg::kMaxBatch))));
  dp::start(*engine->state, engine->lanes.get(), static_cast<int32_t>(vocabulary));
  return engine.release();
}

void dp_engine_destroy(void* handle) { delete &engine_of(handle); }

void* dp_engine_step_buffers(void* handle, int lane) { return &engine_of(handle).lanes[static_cast<size_t>(lane)]; }

// Null for an engine without KV in host memory.
void* dp_engine_recall(void* handle) { return engine_of(handle).state->recall; }

void dp_engine_schedule(void* handle, int lane) {
  Engine& engine = engine_of(handle);
  dp::StepBuffers& step = engine.lanes[static_cast<size_t>(lane)];
  dp::SerialTeam team;
  dp::schedule(team, *engine.state, step, engine.memory);
  if (step.rows > 0) engine.backoff.news();
}

// Samples the rows of the step's `sample_index`, in its order, from `logits` [samples, stride].
void dp_engine_sample(void* handle, int lane, const float* logits, int64_t stride) {
  Engine& engine = engine_of(handle);
  dp::StepBuffers& step = engine.lanes[static_cast<size_t>(lane)];
  const int samples = static_cast<int>(step.samples), benches = static_cast<int>(engine.benches.size());
#ifdef _OPENMP
#pragma omp parallel for num_threads(benches) schedule(static, 1)
#endif
  for (int bench = 0; bench < benches; ++bench) {
    dp::SerialTeam team;
    Bench& own = engine.benches[static_cast<size_t>(bench)];
    for (int i = bench; i < samples; i += benches) {
      dp::sample(team, *engine.state, step, i, logits + i * stride, own.scratch.data(), own.memory);
    }
  }
}

// Moves the heartbeat, between the parts of a long step.
void dp_engine_beat(void* handle) {
  Engine& engine = engine_of(handle);
  dp::show(engine.memory.status.heartbeat, ++engine.state->heartbeat);
}

// 1 once the rings hold something for the next step, or a list of blocks has ended since the last; 0 after `timeout_us`
// without.
int dp_engine_wait(void* handle, int64_t timeout_us) {
  Engine& engine = engine_of(handle);
  const auto news = [&] { return dp::work_waits(*engine.state, engine.memory) || dp::lists_ended(*engine.state); };
  return engine.backoff.wait_until(news, timeout_us) ? 1 : 0;
}

void dp_engine_announce(void* handle, int ready, int stopped) {
  dp::EngineStatus& status = engine_of(handle).memory.status;
  dp::publish(status.ready, static_cast<uint32_t>(ready));
  dp::publish(status.stopped, static_cast<uint32_t>(stopped));
}

}  // extern "C"
