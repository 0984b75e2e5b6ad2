// A team: members that run the same code over shared state. `each` shares out independent items, `scan` and `reduce`
// combine one value of each, `sync` is the barrier. Results do not depend on the number of members, so a team of one
// thread, of several and of a CTA take the same decisions.
//
//   index(), count()     which member this is, of how many
//   leader()             true in one member
//   each(n, f)           f(i) once for each i < n, by some member; ends without a barrier
//   scan(values, n)      exclusive prefix sum in place; returns the total; a barrier before and after
//   reduce(n, f, join)   join over f(i), i < n, of an associative and commutative join; barriers likewise, n may be 0
//
// Every member calls `scan`, `reduce` and `sync` alike: what decides about a call has to be the same for all.
#pragma once
#include <cstdint>

#include "common/portable.hpp"

#ifndef __CUDACC__
#include <barrier>
#endif

namespace dp {

// Joins of `reduce`, with the value of an empty range.
struct Sum {
  static constexpr uint64_t kEmpty = 0;
  DP_FN uint64_t operator()(uint64_t a, uint64_t b) const { return a + b; }
};
struct Least {
  static constexpr uint64_t kEmpty = UINT64_MAX;
  DP_FN uint64_t operator()(uint64_t a, uint64_t b) const { return least(a, b); }
};

struct Most {
  static constexpr uint64_t kEmpty = 0;
  DP_FN uint64_t operator()(uint64_t a, uint64_t b) const { return most(a, b); }
};

// Floating-point sums run in this many lanes, whatever the team: lane l takes the items l, l + 256, ...
constexpr int kLanes = 256;

class SerialTeam {
 public:
  static constexpr int kLanesEach = kLanes;

  DP_FN int index() const { return 0; }
  DP_FN int count() const { return 1; }
  DP_FN bool leader() const { return true; }
  DP_FN void sync() {}

  template <class F>
  DP_FN void each(int n, F f) {
    for (int i = 0; i < n; ++i) f(i);
  }

  DP_FN int32_t scan(int32_t* values, int n) {
    int32_t total = 0;
    for (int i = 0; i < n; ++i) {
      const int32_t value = values[i];
      values[i] = total;
      total += value;
    }
    return total;
  }

  template <class Join, class F>
  DP_FN uint64_t reduce(int n, F f, Join join) {
    uint64_t result = Join::kEmpty;
    for (int i = 0; i < n; ++i) result = join(result, f(i));
    return result;
  }
};

#ifndef __CUDACC__

// Threads of the host, which share `Meeting`. For the sanitizers and for the proof that the number does not matter.
class ThreadTeam {
 public:
  static constexpr int kLanesEach = kLanes;
  static constexpr int kMost = 16;

  struct Meeting {
    explicit Meeting(int count) : members(count), barrier(count) {}
    int members;
    std::barrier<> barrier;
    int32_t sums[kMost] = {};
    uint64_t results[kMost] = {};
  };

  ThreadTeam(Meeting& meeting, int index) : meeting_(meeting), index_(index) {}

  int index() const { return index_; }
  int count() const { return meeting_.members; }
  bool leader() const { return index_ == 0; }
  void sync() { meeting_.barrier.arrive_and_wait(); }

  template <class F>
  void each(int n, F f) {
    for (int i = index_; i < n; i += count()) f(i);
  }

  int32_t scan(int32_t* values, int n) {
    const int part = (n + count() - 1) / count();
    const int begin = least(index_ * part, n), end = least(begin + part, n);
    sync();
    int32_t sum = 0;
    for (int i = begin; i < end; ++i) sum += values[i];
    meeting_.sums[index_] = sum;
    sync();
    int32_t before = 0, total = 0;
    for (int m = 0; m < count(); ++m) {
      if (m < index_) before += meeting_.sums[m];
      total += meeting_.sums[m];
    }
    for (int i = begin; i < end; ++i) {
      const int32_t value = values[i];
      values[i] = before;
      before += value;
    }
    sync();
    return total;
  }

  template <class Join, class F>
  uint64_t reduce(int n, F f, Join join) {
    sync();
    uint64_t result = Join::kEmpty;
    for (int i = index_; i < n; i += count()) result = join(result, f(i));
    meeting_.results[index_] = result;
    sync();
    result = Join::kEmpty;
    for (int m = 0; m < count(); ++m) result = join(result, meeting_.results[m]);
    sync();
    return result;
  }

 private:
  Meeting& meeting_;
  int index_;
};

#else

// One CTA of 256 threads.
class CtaTeam {
 public:
  static constexpr int kThreads = kLanes;
  static constexpr int kLanesEach = 1;
  static constexpr int kWarps = kThreads / 32;

  // In shared memory.
  struct Meeting {
    int32_t sums[kWarps];
    uint64_t results[kWarps];
  };

  __device__ explicit CtaTeam(Meeting& meeting) : meeting_(meeting) {}

  __device__ int index() const { return static_cast<int>(threadIdx.x); }
  __device__ int count() const { return kThreads; }
  __device__ bool leader() const { return threadIdx.x == 0; }
  __device__ void sync() { __syncthreads(); }

  template <class F>
  __device__ void each(int n, F f) {
    for (int i = index(); i < n; i += kThreads) f(i);
  }

  __device__ int32_t scan(int32_t* values, int n) {
    const int part = (n + kThreads - 1) / kThreads;
    const int begin = least(index() * part, n), end = least(begin + part, n);
    sync();
    int32_t sum = 0;
    for (int i = begin; i < end; ++i) sum += values[i];
    const int lane = index() % 32, warp = index() / 32;
    int32_t through = sum;
    for (int step = 1; step < 32; step *= 2) {
      const int32_t lower = __shfl_up_sync(~0u, through, step);
      if (lane >= step) through += lower;
    }
    if (lane == 31) meeting_.sums[warp] = through;
    sync();
    int32_t before = through - sum, total = 0;
    for (int w = 0; w < kWarps; ++w) {
      if (w < warp) before += meeting_.sums[w];
      total += meeting_.sums[w];
    }
    for (int i = begin; i < end; ++i) {
      const int32_t value = values[i];
      values[i] = before;
      before += value;
    }
    sync();
    return total;
  }

  template <class Join, class F>
  __device__ uint64_t reduce(int n, F f, Join join) {
    sync();
    uint64_t result = Join::kEmpty;
    for (int i = index(); i < n; i += kThreads) result = join(result, f(i));
    for (int step = 16; step > 0; step /= 2) result = join(result, __shfl_xor_sync(~0u, result, step));
    if (index() % 32 == 0) meeting_.results[index() / 32] = result;
    sync();
    result = Join::kEmpty;
    for (int w = 0; w < kWarps; ++w) result = join(result, meeting_.results[w]);
    sync();
    return result;
  }

 private:
  Meeting& meeting_;
};

#endif

}  // namespace dp
