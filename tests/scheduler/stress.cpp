// A world that goes on for many steps, from a seed: `stress STEPS SEED MEMBERS`. Prints what happened, and the trace.
#include <thread>

#include "world.hpp"

namespace {

using namespace dp;

struct Random {
  uint64_t state;
  bool more() const { return true; }
  uint32_t draw(uint32_t n) { return static_cast<uint32_t>((mix(++state) >> 32) * n >> 32); }
};

// Runs each step as a team of threads that stay.
class Crew {
 public:
  explicit Crew(int members) : meeting_(members) {
    for (int m = 1; m < members; ++m) threads_.emplace_back([this, m] { serve(m); });
  }
  ~Crew() {
    state_ = nullptr;
    meeting_.barrier.arrive_and_wait();
  }
  Crew(const Crew&) = delete;
  Crew& operator=(const Crew&) = delete;

  void operator()(State& s, StepBuffers& b, RingMemory& m) {
    state_ = &s, buffers_ = &b, memory_ = &m;
    meeting_.barrier.arrive_and_wait();
    run(0);
  }

 private:
  void serve(int member) {
    while (true) {
      meeting_.barrier.arrive_and_wait();
      if (state_ == nullptr) return;
      run(member);
    }
  }
  void run(int member) {
    ThreadTeam team(meeting_, member);
    schedule(team, *state_, *buffers_, *memory_);
    meeting_.barrier.arrive_and_wait();
  }

  ThreadTeam::Meeting meeting_;
  State* state_ = nullptr;
  StepBuffers* buffers_ = nullptr;
  RingMemory* memory_ = nullptr;
  std::vector<std::jthread> threads_;
};

void alone(State& s, StepBuffers& b, RingMemory& m) {
  SerialTeam team;
  schedule(team, s, b, m);
}

template <class Schedule>
void play(uint64_t steps, uint64_t seed, Schedule run) {
  Random random = {seed << 32};
  World<Random, Schedule> world(random, run);
  world.play(steps);
  const Tally& t = world.tally;
  const Counters& c = world.state().counters;
  const auto print = [](const char* name, uint64_t value) {
    std::printf("\"%s\": %llu, ", name, static_cast<unsigned long long>(value));
  };
  std::printf("{");
  print("steps", t.steps), print("slow_steps", t.slow_steps), print("ended", t.ended), print("scored", t.scored);
  print("wraps", t.wraps), print("laps", t.laps), print("stalls", t.stalls), print("closed", t.closed);
  print("killed", t.killed), print("longest_wait", t.longest_wait), print("parks", t.parks);
  print("preempted", c.preempted);
  print("exhausted", c.exhausted), print("epochs", c.epochs), print("reused", c.reused), print("evicted", c.evicted);
  print("aborted", c.aborted), print("malformed", c.malformed);
  if (const SlowToy* slow = world.slow()) {
    print("recalled", slow->recalled), print("chosen", slow->chosen), print("passes", slow->passes);
    print("drained", slow->drained), print("link_waits", c.link_waits);
    print("sparse", t.sparse), print("hits", c.recall_hits), print("misses", c.recall_misses);
  }
  std::printf("\"trace\": \"%016llx\"}\n", static_cast<unsigned long long>(world.trace()));
}

}  // namespace

int main(int count, char** arguments) {
  if (count != 4) return 2;
  const uint64_t steps = std::strtoull(arguments[1], nullptr, 10), seed = std::strtoull(arguments[2], nullptr, 10);
  const int members = std::atoi(arguments[3]);
  if (members == 1) {
    play(steps, seed, alone);
  } else {
    Crew crew(members);
    play<Crew&>(steps, seed, crew);
  }
}
