// An engine without a model, for measuring what is in front of one: the real scheduler over the real rings, one step at
// a time at a set pace. Each row draws the tokens of a script in order, whatever was asked. When requests become
// visible and when tokens are published is kept, by the seeds of the requests.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>
#include <thread>
#include <vector>

#include "common/scheduler.hpp"
#include "moment.hpp"

namespace {

// A moment's `count`: tokens of the request so far.
enum What : uint32_t { kArrival, kToken };

// Between two looks at the rings; a request is noted late by no more than this and what the kernel adds.
constexpr std::chrono::microseconds kPause(20);

struct Replay {
  dp::RingMemory& memory;
  uint64_t step_ns;
  std::vector<int32_t> script;
  std::unique_ptr<dp::StateMemory> state_memory = std::make_unique<dp::StateMemory>();
  std::unique_ptr<dp::State> state = std::make_unique<dp::State>(*state_memory);
  std::unique_ptr<dp::StepBuffers[]> lanes = std::make_unique<dp::StepBuffers[]>(dp::kLaneCount);
  dp::StepBuffers& buffers = lanes[static_cast<size_t>(dp::Lane::kFast)];
  uint64_t due = 0;
  uint32_t epoch[dp::cfg::kRings] = {}, seen[dp::cfg::kRings] = {};
  std::vector<Moment> moments = {};
};

Replay& replay_of(void* handle) { return *static_cast<Replay*>(handle); }

void note_arrivals(Replay& replay, uint64_t now) {
  for (int r = 0; r < dp::cfg::kRings; ++r) {
    const dp::Ring& ring = replay.memory.rings[r];
    const uint32_t epoch = dp::observe(ring.control.epoch);
    if (epoch != replay.epoch[r]) replay.epoch[r] = epoch, replay.seen[r] = 0;
    for (uint32_t n = dp::visible(ring.submits, epoch, replay.seen[r]); n > 0; --n) {
      const dp::SubmitRecord& record = ring.submits[replay.seen[r]++ % dp::cfg::kRequestSlots];
      const auto& params = reinterpret_cast<const dp::RequestParams&>(ring.arena[record.arena_begin]);
      replay.moments.push_back({params.seed, 0, kArrival, now});
    }
  }
}

// Publishes what the last step drew, and lays out and draws the next.
void step(Replay& replay, uint64_t now) {
  dp::StepBuffers& b = replay.buffers;
  const dp::Requests& requests = replay.state->requests;
  const auto each_draw = [&](auto f) {
    for (uint32_t i = b.scored; i < b.samples; ++i) {
      const int32_t q = replay.state->rows.request[b.sample_slot[i]];
      f(i, q, static_cast<uint32_t>(requests.length[q] - requests.prompt[q]));
    }
  };
  each_draw([&](uint32_t, int32_t q, uint32_t drawn) {
    replay.moments.push_back({requests.sampling[q].seed, drawn + 1, kToken, now});
  });
  const uint64_t last = b.rows > 0 ? std::max(replay.due, now - replay.step_ns) : now;
  dp::SerialTeam team;
  dp::schedule(team, *replay.state, b, replay.memory);
  std::fill_n(b.sampled, b.scored, 0);
  each_draw([&](uint32_t i, int32_t, uint32_t drawn) { b.sampled[i] = replay.script[drawn % replay.script.size()]; });
  replay.due = last + replay.step_ns;
}

}  // namespace

extern "C" {

uint64_t dp_replay_layout() { return dp::kLayoutHash; }

// `ring_memory` is a mapped RingMemory and outlives the engine. There has to be a token in the script.
void* dp_replay_create(void* ring_memory, int32_t vocabulary, const int32_t* script, uint32_t tokens,
                       uint64_t step_ns) {
  std::unique_ptr<Replay> replay(
      new Replay{*static_cast<dp::RingMemory*>(ring_memory), step_ns, {script, script + tokens}});
  dp::start(*replay->state, replay->lanes.get(), vocabulary);
  dp::publish(replay->memory.status.ready, 1u);
  return replay.release();
}

// Plays for so long.
void dp_replay_run(void* handle, uint64_t for_us) {
  Replay& replay = replay_of(handle);
  const uint64_t end = clock_ns() + for_us * 1000;
  // Once at least, so that the heartbeat moves.
  if (replay.buffers.rows == 0) step(replay, clock_ns());
  for (uint64_t now = clock_ns(); now < end; now = clock_ns()) {
    note_arrivals(replay, now);
    if (replay.buffers.rows > 0 ? now >= replay.due : dp::work_waits(*replay.state, replay.memory)) {
      step(replay, now);
    } else {
      std::this_thread::sleep_for(kPause);
    }
  }
}

// Writes the moments to the file `path`, and ends. 0 if that failed.
int dp_replay_end(void* handle, const char* path) {
  std::unique_ptr<Replay> replay(&replay_of(handle));
  dp::publish(replay->memory.status.ready, 0u);
  dp::publish(replay->memory.status.stopped, 1u);
  if (path == nullptr) return 1;
  std::FILE* file = std::fopen(path, "wb");
  if (file == nullptr) return 0;
  const size_t count = replay->moments.size();
  const bool whole = std::fwrite(replay->moments.data(), sizeof(Moment), count, file) == count;
  return std::fclose(file) == 0 && whole ? 1 : 0;
}

}  // extern "C"
