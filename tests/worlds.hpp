// What worlds without a model share.
#pragma once
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>

#include "common/team.hpp"

namespace dp {

inline void expect(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "%s\n", what);
  std::abort();
}

inline uint64_t mix(uint64_t x) {
  x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9;
  x = (x ^ x >> 27) * 0x94D049BB133111EB;
  return x ^ x >> 31;
}

struct Random {
  uint64_t state;
  uint32_t draw(uint32_t n) { return static_cast<uint32_t>((mix(++state * 0x9E3779B97F4A7C15) >> 32) * n >> 32); }
  bool one_in(uint32_t n) { return draw(n) == 0; }
};

// Runs something as a team of threads that stay, or alone.
class Crew {
 public:
  explicit Crew(int members) : meeting_(members) {
    for (int m = 1; m < members; ++m) threads_.emplace_back([this, m] { serve(m); });
  }
  ~Crew() {
    job_ = nullptr;
    meeting_.barrier.arrive_and_wait();
  }
  Crew(const Crew&) = delete;
  Crew& operator=(const Crew&) = delete;

  template <class F>
  void run(F f) {
    if (threads_.empty()) {
      SerialTeam team;
      return f(team);
    }
    const auto job = [&](int member) {
      ThreadTeam team(meeting_, member);
      f(team);
      meeting_.barrier.arrive_and_wait();
    };
    using Job = decltype(job);
    context_ = &job;
    job_ = [](const void* context, int member) { (*static_cast<const Job*>(context))(member); };
    meeting_.barrier.arrive_and_wait();
    job(0);
  }

 private:
  void serve(int member) {
    while (true) {
      meeting_.barrier.arrive_and_wait();
      if (job_ == nullptr) return;
      job_(context_, member);
    }
  }

  ThreadTeam::Meeting meeting_;
  const void* context_ = nullptr;
  void (*job_)(const void*, int) = nullptr;
  std::vector<std::jthread> threads_;
};

}  // namespace dp
