// Barriers in shared memory that count arrivals. PTX ISA, "mbarrier".
#pragma once
#include "cuda/ptx.cuh"

namespace dp {

inline __device__ void init_barrier(uint64_t& barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(&barrier)), "r"(arrivals) : "memory");
}

// What was initialised is a barrier for the other threads after the CTA's next barrier.
inline __device__ void publish_barriers() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }

inline __device__ void arrive(uint64_t& barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(&barrier)) : "memory");
}

// An arrival when all copies that the thread has begun are done.
inline __device__ void arrive_after_copies(uint64_t& barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(shared_address(&barrier)) : "memory");
}

inline __device__ void wait_copies_of_thread() { asm volatile("cp.async.wait_all;" ::: "memory"); }

// Until the phase of this parity is complete.
inline __device__ void wait_barrier(uint64_t& barrier, uint32_t parity) {
  asm volatile(
      "{ .reg .pred done;\n"
      "again: mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@!done bra again; }" ::"r"(shared_address(&barrier)),
      "r"(parity)
      : "memory");
}

}  // namespace dp
