// Where a CTA schedules: in shared memory it has what every step touches, a copy, and the lists that a step makes. A
// load from there takes a tenth of the time of one from the L2 cache, and in a step most loads wait for another.
#pragma once
#include <cstddef>

#include "common/poll.hpp"
#include "common/portable.hpp"
#include "common/publish.hpp"
#include "common/state.hpp"
#include "common/team.hpp"
#include "cuda/ptx.cuh"

namespace dp {

// A warp beside the team, which stores the flags of records while the team lays out the next step.
class SideTeam {
 public:
  static constexpr int kThreads = 32;

  __device__ int index() const { return static_cast<int>(threadIdx.x) - CtaTeam::kThreads; }
  __device__ void sync() { __syncwarp(); }

  template <class F>
  __device__ void each(int n, F f) {
    for (int i = index(); i < n; i += kThreads) f(i);
  }
};

constexpr int kDeskThreads = CtaTeam::kThreads + SideTeam::kThreads;

// Words of the rings on their way from host memory, in pieces of 16 bytes: of each ring the one that begins with the
// epoch, the one that begins with the reader's count, and those that end with the flag of the next submit and abort.
struct Glimpses {
  alignas(16) uint64_t piece[cfg::kRings][4][2];
  uint64_t arrived;  // a barrier of the copy engine's
};

// The team, which calls the warp beside it with one barrier and waits for it at another.
class DeskTeam : public CtaTeam {
 public:
  __device__ DeskTeam(Meeting& meeting, Glimpses& seen) : CtaTeam(meeting), glimpses(seen) {}

  // Of all that it could be asked the warp does `announce`: see at_desk.
  template <class F>
  __device__ void beside(F) {
    call(false);
  }
  __device__ void rejoin() { asm volatile("barrier.sync.aligned 3, %0;" ::"n"(kDeskThreads) : "memory"); }

  // Where the team calls and the warp waits for it; whether it is for the last time, which the team says.
  static __device__ bool call(bool over) {
    uint32_t last;
    asm volatile(
        "{ .reg .pred over, last;\n"
        "setp.ne.b32 over, %1, 0;\n"
        "barrier.red.or.pred.aligned last, 2, %2, over;\n"
        "selp.u32 %0, 1, 0, last; }"
        : "=r"(last)
        : "r"(static_cast<uint32_t>(over)), "n"(kDeskThreads)
        : "memory");
    return last != 0;
  }
  static __device__ void answer() { asm volatile("barrier.arrive.aligned 3, %0;" ::"n"(kDeskThreads) : "memory"); }

  Glimpses& glimpses;
  uint32_t parity = 0;  // of the copies that are waited for next
};

// The shared memory of a CTA that schedules.
struct Seat {
  CtaTeam::Meeting meeting;
  Glimpses glimpses;
  Desk desk;
  Work work;
};
static_assert(sizeof(Seat) <= kSmBytes - 1024, "lower scheduler.max_batch or scheduler.max_queued_requests");

// A load from host memory holds up all later ones of its SM, so on GPUs that have a copy engine for it the rings' words
// come that way. What they say is only a hint: `take_sights` observes what is new before it relies on it.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
#define DP_COPY_ENGINE 1
#else
#define DP_COPY_ENGINE 0
#endif

__device__ inline void begin_glimpses([[maybe_unused]] Glimpses& glimpses) {
#if DP_COPY_ENGINE
  asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(shared_address(&glimpses.arrived)) : "memory");
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#endif
}

__device__ inline void fetch_piece([[maybe_unused]] Glimpses& glimpses, [[maybe_unused]] uint64_t (&to)[2],
                                   [[maybe_unused]] const void* from) {
#if DP_COPY_ENGINE
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], 16, [%2];" ::"r"(
                   shared_address(to)),
               "l"(__cvta_generic_to_global(from)), "r"(shared_address(&glimpses.arrived))
               : "memory");
#endif
}

// As of every team, but for the way.
__device__ inline Sights<DeskTeam> look(DeskTeam& team, const State& s, const RingMemory& m) {
#if DP_COPY_ENGINE
  Glimpses& glimpses = team.glimpses;
  if (team.leader()) {
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(&glimpses.arrived)),
                 "n"(sizeof glimpses.piece)
                 : "memory");
    for (int r = 0; r < cfg::kRings; ++r) {
      const Ring& ring = m.rings[r];
      const SubmitRecord& submit = ring.submits[s.rings[r].submit_read % cfg::kRequestSlots];
      const AbortRecord& abort = ring.aborts[s.rings[r].abort_read % cfg::kRequestSlots];
      fetch_piece(glimpses, glimpses.piece[r][0], &ring.control.epoch);
      fetch_piece(glimpses, glimpses.piece[r][1], &ring.control.token_read);
      fetch_piece(glimpses, glimpses.piece[r][2], reinterpret_cast<const uint64_t*>(&submit.flag) - 1);
      fetch_piece(glimpses, glimpses.piece[r][3], reinterpret_cast<const uint64_t*>(&abort.flag) - 1);
    }
  }
  return {};
#else
  return look<DeskTeam>(team, s, m);
#endif
}

__device__ inline void keep_sights(DeskTeam& team, const State& s, [[maybe_unused]] const Sights<DeskTeam>& sights) {
#if DP_COPY_ENGINE
  Glimpses& glimpses = team.glimpses;
  team.each(cfg::kRings, [&](int r) {
    uint32_t arrived = 0;
    while (arrived == 0) {
      asm volatile(
          "{\n"
          ".reg .pred there;\n"
          "mbarrier.try_wait.parity.shared::cta.b64 there, [%1], %2;\n"
          "selp.u32 %0, 1, 0, there;\n"
          "}"
          : "=r"(arrived)
          : "r"(shared_address(&glimpses.arrived)), "r"(team.parity)
          : "memory");
    }
    s.work.epoch[r] = static_cast<uint32_t>(glimpses.piece[r][0][0]);
    s.work.token_read[r] = static_cast<uint32_t>(glimpses.piece[r][1][0]);
    s.work.submit_flag[r] = glimpses.piece[r][2][1];
    s.work.abort_flag[r] = glimpses.piece[r][3][1];
  });
  team.parity ^= 1;
#else
  keep_sights<DeskTeam>(team, s, sights);
#endif
}
static_assert(offsetof(SubmitRecord, flag) % 16 == 8 && offsetof(AbortRecord, flag) % 16 == 8, "a flag ends a piece");

// Copies between global and shared memory, all loads before the first store.
__device__ inline void copy(const Desk& from, Desk& to) {
  constexpr int kCount = sizeof(Desk) / sizeof(uint4), kEach = (kCount + CtaTeam::kThreads - 1) / CtaTeam::kThreads;
  const auto* in = reinterpret_cast<const uint4*>(&from);
  auto* out = reinterpret_cast<uint4*>(&to);
  uint4 held[kEach];
#pragma unroll
  for (int k = 0; k < kEach; ++k) {
    const int i = static_cast<int>(threadIdx.x) + k * CtaTeam::kThreads;
    if (i < kCount) held[k] = in[i];
  }
#pragma unroll
  for (int k = 0; k < kEach; ++k) {
    const int i = static_cast<int>(threadIdx.x) + k * CtaTeam::kThreads;
    if (i < kCount) out[i] = held[k];
  }
}

// What retiring the last step begins with.
__device__ inline void prefetch_batch(const StepBuffers& step) {
  constexpr int kLine = 32;  // words
  const int word = static_cast<int>(threadIdx.x) * kLine;
  if (word == 0) prefetch(step.rows);
  if (word >= cfg::kMaxBatch) return;
  prefetch(step.row_slot[word]);
  prefetch(step.query_begin[word]);
  prefetch(step.position[word]);
  prefetch(step.context[word]);
  prefetch(step.sample_slot[word]);
  prefetch(step.sampled[word]);
  prefetch(step.logprob[word]);
}

// run(team, s) with the desk in shared memory, from where it goes back. kDeskThreads threads.
template <class Run>
__device__ void at_desk(StateMemory& state, const StepBuffers& step, RingMemory& rings, Run run) {
  extern __shared__ __align__(16) unsigned char shared[];
  Seat& seat = *reinterpret_cast<Seat*>(shared);
  State s(state, seat.desk, seat.work);
  if (threadIdx.x >= CtaTeam::kThreads) {
    SideTeam side;
    while (!DeskTeam::call(false)) {
      announce(side, s, rings);
      DeskTeam::answer();
    }
    return;
  }
  prefetch_batch(step);
  copy(state.desk, seat.desk);
  DeskTeam team(seat.meeting, seat.glimpses);
  if (team.leader()) begin_glimpses(seat.glimpses);
  team.sync();
  run(team, s);
  team.sync();
  copy(seat.desk, state.desk);
  DeskTeam::call(true);
}

}  // namespace dp
