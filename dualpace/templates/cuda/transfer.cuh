// Copies of units between the host's pinned memory and the GPU's, by few CTAs beside a step.
//
// The link wants its bandwidth times its latency on the way at any time: some 400 KiB beside a busy memory. Bulk copies
// have as much with two CTAs of one active thread a warp, and the fewer SMs they take the less they slow down a step.
// A CTA that waits for an SM has nothing on the way. So one launch does many lists, also such as are not there yet when
// it begins, and asks for the first units of a list before the last of the one before it are stored.
#pragma once
#include <cstddef>
#include <cstdint>

#include "common/transfer.hpp"
#include "cuda/mbarrier.cuh"
#include "cuda/ptx.cuh"

namespace dp {

constexpr unsigned kTransferNapNs = 200;

// The largest part of a unit that is copied at once: whole vectors, no more than 8 KiB.
constexpr int transfer_chunk(int unit) {
  int parts = 1;
  while (unit / parts > 8192 || unit % (16 * parts) != 0) ++parts;
  return unit / parts;
}

// Plain loads and stores, for GPUs without bulk copies: a CTA does its part of each list as a whole.
template <class Queue, int kUnit>
struct VectorCopy {
  static constexpr int kThreads = 512;
  static constexpr int kLoads = 4;  // of a thread, on their way
  static constexpr int kVectors = kUnit / 16;
  static constexpr int kTurn = kThreads * kLoads;
  struct Shared {};

  static __device__ void run(Queue& queue, const std::byte* from, std::byte* to, Shared&) {
    const uint32_t until = queue.until;
    for (uint32_t ticket = queue.ended + 1; ticket != until + 1; ++ticket) {
      if (threadIdx.x == 0) {
        while (!includes(observe(queue.published), ticket)) __nanosleep(kTransferNapNs);
      }
      __syncthreads();
      const Transfer* items = queue.items_of(ticket);
      const int vectors = queue.count_of(ticket) * kVectors;
      for (int turn = static_cast<int>(blockIdx.x); turn * kTurn < vectors; turn += static_cast<int>(gridDim.x)) {
        copy(items, turn * kTurn + static_cast<int>(threadIdx.x), vectors, from, to);
      }
      __syncthreads();
      if (threadIdx.x == 0) arrive(queue, ticket, gridDim.x);
    }
  }

 private:
  static __device__ void copy(const Transfer* items, int first, int vectors, const std::byte* from, std::byte* to) {
    uint4 value[kLoads];
    std::byte* target[kLoads];
#pragma unroll
    for (int k = 0; k < kLoads; ++k) {
      const int v = first + k * kThreads;
      target[k] = nullptr;
      if (v >= vectors) continue;
      const Transfer item = items[v / kVectors];
      const int offset = v % kVectors * 16;
      target[k] = to + int64_t{item.to} * kUnit + offset;
      asm volatile("ld.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                   : "=r"(value[k].x), "=r"(value[k].y), "=r"(value[k].z), "=r"(value[k].w)
                   : "l"(from + int64_t{item.from} * kUnit + offset)
                   : "memory");
    }
#pragma unroll
    for (int k = 0; k < kLoads; ++k) {
      if (target[k] != nullptr) *reinterpret_cast<uint4*>(target[k]) = value[k];
    }
  }
};

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900

// A part of a unit on its way through a stage of shared memory, and lists that end for its warp with it.
struct Leg {
  std::byte* to;
  int ends;
};

// The first thread of each warp has a ring of stages. Every so-manieth chunk of each list is the warp's.
template <class Queue, int kUnit, int kWarpCount = 4, int kChunk = transfer_chunk(kUnit),
          int kStages = least((kSmBytes - 36 * 1024) / kWarpCount / kChunk, 32)>
class BulkCopy {
 public:
  static constexpr int kThreads = kWarpCount * 32;
  struct Shared {
    alignas(128) std::byte stage[kWarpCount][kStages][kChunk];
    uint64_t full[kWarpCount][kStages];
    Leg leg[kWarpCount][kStages];
  };

  static __device__ void run(Queue& queue, const std::byte* from, std::byte* to, Shared& shared) {
    if (threadIdx.x % 32 == 0) BulkCopy(queue, from, to, shared).run();
  }

 private:
  static constexpr int kChunks = kUnit / kChunk;
  static constexpr int kStores = 1;  // chunks on their way out
  static constexpr uint32_t kAhead = kStages - kStores;
  static_assert(kStages > kStores);

  __device__ BulkCopy(Queue& queue, const std::byte* from, std::byte* to, Shared& shared)
      : queue_(queue),
        from_(from),
        to_(to),
        stage_(shared.stage[threadIdx.x / 32]),
        full_(shared.full[threadIdx.x / 32]),
        leg_(shared.leg[threadIdx.x / 32]),
        parts_(gridDim.x * kWarpCount),
        until_(queue.until),
        asking_(queue.ended + 1),
        ending_(asking_) {
    for (uint64_t& full : full_) init_barrier(full, 1);
    publish_barriers();
    fence_proxies();
  }

  __device__ void run() {
    for (;;) {
      ask();
      if (asked_ != stored_) {
        store();
      } else if (asking_ == until_ + 1) {
        return;
      } else {
        __nanosleep(kTransferNapNs);
      }
    }
  }

  // Asks for chunks while there are stages, and lists that are there.
  __device__ void ask() {
    while (asked_ - stored_ < kAhead && asking_ != until_ + 1) {
      if (chunks_ == kUnseen) {
        if (!includes(observe(queue_.published), asking_)) return;
        fence_proxies();  // what is to be copied was written by others' loads and stores
        chunks_ = queue_.count_of(asking_) * kChunks;
        chunk_ = static_cast<int>(blockIdx.x * kWarpCount + threadIdx.x / 32);
        look_ahead();
      }
      if (chunk_ < chunks_) {
        const uint32_t s = asked_++ % kStages;
        const int64_t offset = chunk_ % kChunks * kChunk;
        leg_[s] = {to_ + int64_t{next_.to} * kUnit + offset, 0};
        expect_bytes(full_[s], kChunk);
        bulk_to_shared(stage_[s], from_ + int64_t{next_.from} * kUnit + offset, kChunk, full_[s]);
        chunk_ += static_cast<int>(parts_);
        look_ahead();
      }
      if (chunk_ < chunks_) continue;
      chunks_ = kUnseen;
      ++asking_;
      if (asked_ == stored_) {
        arrive(queue_, ending_++, parts_);
      } else {
        ++leg_[(asked_ - 1) % kStages].ends;
      }
    }
  }

  // The item is loaded a turn before its chunk is asked for.
  __device__ void look_ahead() {
    if (chunk_ < chunks_) next_ = queue_.items_of(asking_)[chunk_ / kChunks];
  }

  __device__ void store() {
    const uint32_t s = stored_ % kStages;
    wait_barrier(full_[s], stored_ / kStages % 2);
    bulk_to_global(leg_[s].to, stage_[s], kChunk);
    wait_bulk_reads<kStores>();
    ++stored_;
    if (leg_[s].ends == 0) return;
    wait_bulk_writes();
    fence_proxies();
    for (int i = 0; i < leg_[s].ends; ++i) arrive(queue_, ending_++, parts_);
  }

  static __device__ void expect_bytes(uint64_t& barrier, int bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(&barrier)), "r"(bytes)
                 : "memory");
  }

  static __device__ void bulk_to_shared(std::byte* to, const std::byte* from, int bytes, uint64_t& barrier) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                     shared_address(to)),
                 "l"(from), "r"(bytes), "r"(shared_address(&barrier))
                 : "memory");
  }

  static __device__ void bulk_to_global(std::byte* to, const std::byte* from, int bytes) {
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to), "r"(shared_address(from)),
                 "r"(bytes)
                 : "memory");
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
  }

  // Until no more than so many of the thread's chunks are still read from their stages.
  template <int kPending>
  static __device__ void wait_bulk_reads() {
    asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(kPending) : "memory");
  }

  static __device__ void wait_bulk_writes() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }

  // Between what bulk copies read and write and what other instructions do.
  static __device__ void fence_proxies() { asm volatile("fence.proxy.async;" ::: "memory"); }

  static constexpr int kUnseen = -1;

  Queue& queue_;
  const std::byte* from_;
  std::byte* to_;
  std::byte (&stage_)[kStages][kChunk];
  uint64_t (&full_)[kStages];
  Leg (&leg_)[kStages];
  const uint32_t parts_, until_;
  uint32_t asking_, ending_;          // tickets: of the list that is asked for, of the next to end
  uint32_t asked_ = 0, stored_ = 0;   // the warp's chunks
  int chunk_ = 0, chunks_ = kUnseen;  // of the list that is asked for
  Transfer next_ = {};
};

#endif

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
template <class Queue, int kUnit>
using UnitCopy = VectorCopy<Queue, kUnit>;
#else
template <class Queue, int kUnit>
using UnitCopy = BulkCopy<Queue, kUnit>;
#endif

}  // namespace dp
