// Instructions that several kernels use and C++ has no words for.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

namespace dp {

// Shared memory of an SM, of which each CTA takes 1 KiB more than it asks for.
#if __CUDA_ARCH__ == 800 || __CUDA_ARCH__ == 870
constexpr int kSmBytes = 164 * 1024;
#elif __CUDA_ARCH__ == 860 || __CUDA_ARCH__ == 890 || __CUDA_ARCH__ == 1200
constexpr int kSmBytes = 100 * 1024;
#else
constexpr int kSmBytes = 228 * 1024;
#endif

// Programmatic dependent launch. The next kernel of the stream may start once every CTA of this one has called this or
// ended; what it does before its own wait_dependency() then overlaps this one.
inline __device__ void launch_dependents() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// Returns when the kernel before this one has ended and what it wrote is visible. That says nothing of the kernel
// before that one unless it too has waited: so every CTA of every kernel of a step calls this, whether or not it has
// work. What the step before wrote (StepBuffers), and weights, may be read earlier.
inline __device__ void wait_dependency() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// Asks for `bytes`, a multiple of 16, of global memory to be brought to the L2.
inline __device__ void prefetch(const void* from, int bytes) {
#if __CUDA_ARCH__ >= 900
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from), "r"(bytes) : "memory");
#endif
}

// c += a b: a is 16 x 16, b 16 x 8.
template <class T>
__device__ void mma(float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  if constexpr (std::is_same_v<T, __nv_bfloat16>) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  } else {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  }
}

inline __device__ uint32_t shared_address(const void* p) { return static_cast<uint32_t>(__cvta_generic_to_shared(p)); }

// 16 bytes to shared memory in the background; zeros if not `valid`. Copies complete by groups, oldest first. What
// nobody reads again soon, such as KV and weights, is the first that L2 evicts.
template <bool kReadAgain = false>
__device__ void copy_vector(uint32_t to, const void* from, bool valid) {
  const int bytes = valid ? 16 : 0;
  if constexpr (kReadAgain) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes) : "memory");
  } else {
    uint64_t evict_first;
    asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(evict_first));
    asm volatile("cp.async.cg.shared.global.L2::cache_hint.L2::128B [%0], [%1], 16, %2, %3;" ::"r"(to), "l"(from),
                 "r"(bytes), "l"(evict_first)
                 : "memory");
  }
}
inline __device__ void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int kPending>
__device__ void wait_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

}  // namespace dp
