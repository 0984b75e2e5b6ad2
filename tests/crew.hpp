// Runs something as a team of threads that stay, or alone.
#pragma once
#include <thread>
#include <vector>

#include "common/team.hpp"

namespace dp {

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
