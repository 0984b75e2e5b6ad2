// A team: members that run the same code over shared state. `each` shares out independent items, `scan` and `reduce`
// combine one value of each, `sync` is the barrier. Results do not depend on the number of members, so a team of one
// thread, of several and of a CTA take the same decisions.
//
//   index(), count()     which member this is, of how many
//   leader()             true in one member
//   each(n, f)           f(i) once for each i < n, by some member; ends without a barrier
//   scan(values, n)      exclusive prefix sum in place, of numbers or Counts; returns the total; a barrier before and
//                        after
//   reduce(n, f, join)   join over f(i), i < n, of an associative and commutative join; barriers likewise, n may be 0
//   pick(n, wanted, take) take(i, k) for each i < n that is wanted, of which k come before it; returns how many;
//   barriers
//                        as of scan
//   over(values, n, f)   f(i, values[i]) likewise; a CTA loads several values before it needs the first
//   add(word, more)      adds to a word of the team's shared memory, with others at the same time
//   beside(f)            f(side) with a team of its own, after what came before, while this one goes on; where there is
//                        none, with this one, at once
//   rejoin()             waits for it
//   share(n)             constant: the most of n items that are one member's, of those index(), index() + count(), ...
//
// Every member calls `scan`, `reduce` and `sync` alike: what decides about a call has to be the same for all.
#pragma once
#include <cstdint>

#include "common/portable.hpp"

#ifndef __CUDACC__
#include <barrier>
#include <cstring>
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

// Several counts that a scan adds up at once.
template <int N>
struct Counts {
  int32_t of[N];

  DP_FN Counts& operator+=(const Counts& more) {
    for (int k = 0; k < N; ++k) of[k] += more.of[k];
    return *this;
  }
};
constexpr int kMostCounts = 16;  // in a scan

// A long row is cut into this many lanes, whatever the team: lane l takes the items l, l + kLanes, ...
constexpr int kLanes = 512;

class SerialTeam {
 public:
  static constexpr int kLanesEach = kLanes;

  DP_FN int index() const { return 0; }
  DP_FN int count() const { return 1; }
  DP_FN bool leader() const { return true; }
  DP_FN void sync() {}
  static constexpr int share(int n) { return n; }

  template <class F>
  DP_FN void each(int n, F f) {
    for (int i = 0; i < n; ++i) f(i);
  }

  template <class T, class F>
  DP_FN void over(const T* values, int n, F f) {
    for (int i = 0; i < n; ++i) f(i, values[i]);
  }

  DP_FN void add(uint64_t& word, uint64_t more) { word += more; }

  template <class F>
  DP_FN void beside(F f) {
    f(*this);
  }
  DP_FN void rejoin() {}

  template <class T>
  DP_FN T scan(T* values, int n) {
    T total = {};
    for (int i = 0; i < n; ++i) {
      const T value = values[i];
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

  template <class Wanted, class Take>
  DP_FN int pick(int n, Wanted wanted, Take take) {
    int picked = 0;
    for (int i = 0; i < n; ++i) {
      if (wanted(i)) take(i, picked++);
    }
    return picked;
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
    alignas(16) int32_t sums[kMost][kMostCounts] = {};
    uint64_t results[kMost] = {};
  };

  ThreadTeam(Meeting& meeting, int index) : meeting_(meeting), index_(index) {}

  int index() const { return index_; }
  int count() const { return meeting_.members; }
  bool leader() const { return index_ == 0; }
  void sync() { meeting_.barrier.arrive_and_wait(); }
  static constexpr int share(int n) { return n; }

  template <class F>
  void each(int n, F f) {
    for (int i = index_; i < n; i += count()) f(i);
  }

  template <class T, class F>
  void over(const T* values, int n, F f) {
    each(n, [&](int i) { f(i, values[i]); });
  }

  void add(uint64_t& word, uint64_t more) { dp::add(word, more); }

  template <class F>
  void beside(F f) {
    f(*this);
  }
  void rejoin() {}

  template <class T>
  T scan(T* values, int n) {
    static_assert(sizeof(T) <= sizeof meeting_.sums[0]);
    const int part = (n + count() - 1) / count();
    const int begin = least(index_ * part, n), end = least(begin + part, n);
    const auto sum_of = [&](int member) {
      T sum = {};
      std::memcpy(&sum, meeting_.sums[member], sizeof sum);
      return sum;
    };
    sync();
    T sum = {};
    for (int i = begin; i < end; ++i) sum += values[i];
    std::memcpy(meeting_.sums[index_], &sum, sizeof sum);
    sync();
    T before = {}, total = {};
    for (int m = 0; m < count(); ++m) {
      if (m < index_) before += sum_of(m);
      total += sum_of(m);
    }
    for (int i = begin; i < end; ++i) {
      const T value = values[i];
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

  template <class Wanted, class Take>
  int pick(int n, Wanted wanted, Take take) {
    const int part = (n + count() - 1) / count();
    const int begin = least(index_ * part, n), end = least(begin + part, n);
    sync();
    int mine = 0;
    for (int i = begin; i < end; ++i) mine += wanted(i) ? 1 : 0;
    meeting_.sums[index_][0] = mine;
    sync();
    int before = 0, total = 0;
    for (int m = 0; m < count(); ++m) {
      if (m < index_) before += meeting_.sums[m][0];
      total += meeting_.sums[m][0];
    }
    for (int i = begin; i < end; ++i) {
      if (wanted(i)) take(i, before++);
    }
    sync();
    return total;
  }

 private:
  Meeting& meeting_;
  int index_;
};

#else

// The first threads of a CTA; others there do not take part in its barriers. A scan ends with a barrier and a reduction
// begins with one, and they tell each other things in places of their own: so nobody is late in reading when a place is
// written again. A reduction takes kUnroll values at a time.
template <int kCount, int kUnroll = 1>
class CtaTeamOf {
 public:
  static constexpr int kThreads = kCount;
  static constexpr int kLanesEach = kLanes / kThreads;
  static constexpr int kWarps = kThreads / 32;

  // In shared memory.
  struct Meeting {
    alignas(16) int32_t sums[kWarps][kMostCounts];
    uint64_t results[kWarps];
  };

  __device__ explicit CtaTeamOf(Meeting& meeting) : meeting_(meeting) {}

  __device__ int index() const { return static_cast<int>(threadIdx.x); }
  __device__ int count() const { return kThreads; }
  __device__ bool leader() const { return threadIdx.x == 0; }
  __device__ void sync() { asm volatile("barrier.sync.aligned 1, %0;" ::"n"(kThreads) : "memory"); }
  static constexpr int share(int n) { return (n + kThreads - 1) / kThreads; }

  template <class F>
  __device__ void each(int n, F f) {
#pragma unroll 1
    for (int i = index(); i < n; i += kThreads) f(i);
  }

  template <class T, class F>
  __device__ void over(const T* values, int n, F f) {
    constexpr int kAhead = 8;
    int i = index();
    for (; i + (kAhead - 1) * kThreads < n; i += kAhead * kThreads) {
      T ahead[kAhead];
#pragma unroll
      for (int k = 0; k < kAhead; ++k) ahead[k] = values[i + k * kThreads];
#pragma unroll
      for (int k = 0; k < kAhead; ++k) f(i + k * kThreads, ahead[k]);
    }
    for (; i < n; i += kThreads) f(i, values[i]);
  }

  // Shared memory adds 32 bits at a time. Each carry is seen by one member, so the halves come out right.
  __device__ void add(uint64_t& word, uint64_t more) {
    auto* halves = reinterpret_cast<uint32_t*>(&word);
    const auto low = static_cast<uint32_t>(more), high = static_cast<uint32_t>(more >> 32);
    const uint32_t carry = atomicAdd(&halves[0], low) > ~low ? 1 : 0;
    if (high + carry != 0) atomicAdd(&halves[1], high + carry);
  }

  template <class T>
  __device__ T scan(T* values, int n) {
    static_assert(sizeof(T) <= sizeof meeting_.sums[0]);
    const int part = (n + kThreads - 1) / kThreads;
    const int begin = least(index() * part, n), end = least(begin + part, n);
    if (part > 1) sync();  // else each member's value is its own
    T sum = {};
#pragma unroll 1
    for (int i = begin; i < end; ++i) sum += values[i];
    const int lane = index() % 32, warp = index() / 32;
    const auto sum_of = [&](int w) -> T& { return *reinterpret_cast<T*>(meeting_.sums[w]); };
    T through = sum;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
      const T lower = shifted(through, step);
      if (lane >= step) through += lower;
    }
    if (lane == 31) sum_of(warp) = through;
    T before = shifted(through, 1), total = {};
    if (lane == 0) before = {};
    sync();
#pragma unroll
    for (int w = 0; w < kWarps; ++w) {
      if (w < warp) before += sum_of(w);
      total += sum_of(w);
    }
#pragma unroll 1
    for (int i = begin; i < end; ++i) {
      const T value = values[i];
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
#pragma unroll kUnroll
    for (int i = index(); i < n; i += kThreads) result = join(result, f(i));
#pragma unroll
    for (int step = 16; step > 0; step /= 2) result = join(result, __shfl_xor_sync(~0u, result, step));
    if (index() % 32 == 0) meeting_.results[index() / 32] = result;
    sync();
    result = Join::kEmpty;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) result = join(result, meeting_.results[w]);
    return result;
  }

  // Each warp sees to as many runs of a warp's items, one after the other.
  template <class Wanted, class Take>
  __device__ int pick(int n, Wanted wanted, Take take) {
    const int runs = (n + kThreads - 1) / kThreads, lane = index() % 32, warp = index() / 32;
    const int first = warp * runs * 32 + lane;
    const auto vote = [&](int run) { return __ballot_sync(~0u, first + run * 32 < n && wanted(first + run * 32)); };
    sync();
    int mine = 0;
    for (int run = 0; run < runs; ++run) mine += __popc(vote(run));
    if (lane == 0) meeting_.sums[warp][0] = mine;
    sync();
    int before = 0, total = 0;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) {
      if (w < warp) before += meeting_.sums[w][0];
      total += meeting_.sums[w][0];
    }
    for (int run = 0; run < runs; ++run) {
      const unsigned wanted_here = vote(run);
      if (wanted_here >> lane & 1) take(first + run * 32, before + __popc(wanted_here & ((1u << lane) - 1)));
      before += __popc(wanted_here);
    }
    sync();
    return total;
  }

 private:
  template <class T>
  static __device__ T shifted(T value, int step) {
    auto* words = reinterpret_cast<int32_t*>(&value);
#pragma unroll
    for (unsigned k = 0; k < sizeof(T) / sizeof(int32_t); ++k) words[k] = __shfl_up_sync(~0u, words[k], step);
    return value;
  }

  Meeting& meeting_;
};

using CtaTeam = CtaTeamOf<256>;
using SamplerTeam = CtaTeamOf<kLanes>;

#endif

}  // namespace dp
