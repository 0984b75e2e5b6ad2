// What lets one source compile with g++ for the host and with nvcc for the device: function spaces and atomic flags.
#pragma once
#include <cstdint>

#ifdef __CUDACC__
#include <cuda/atomic>
#define DP_FN __host__ __device__
#define DP_RARE __host__ __device__ __noinline__
#else
#include <atomic>
#define DP_FN
#define DP_RARE
#endif

// DP_FN: a function of host and device. DP_RARE: one that few steps call, which the device keeps out of the way of the
// others: what a step runs once it waits to fetch. A team goes there by value, so that it stays in registers.

namespace dp {

#ifdef __CUDACC__
template <class T>
using SharedWord = cuda::atomic_ref<T, cuda::thread_scope_system>;
namespace order = cuda::std;
#else
template <class T>
using SharedWord = std::atomic_ref<T>;
namespace order = std;
#endif

// What the writer stored before its `publish` of the value read here is visible from here on.
template <class T>
DP_FN inline T observe(const T& word) {
  return SharedWord<T>(const_cast<T&>(word)).load(order::memory_order_acquire);
}

// Observing and publishing many words at a time, with one fence for all: what was peeked at is to be relied on, and
// what is posted may be stored, only after `settle` by the same thread. A fence, which the device makes of each
// acquiring load and of each releasing store, takes it half a microsecond, and empties the L1 cache.
template <class T>
DP_FN inline T peek(const T& word) {
#ifdef __CUDA_ARCH__
  return SharedWord<T>(const_cast<T&>(word)).load(order::memory_order_relaxed);
#else
  return observe(word);
#endif
}

DP_FN inline void settle() {
#ifdef __CUDA_ARCH__
  cuda::atomic_thread_fence(order::memory_order_acq_rel, cuda::thread_scope_system);
#endif
}

// Stores `value`, and loads nothing before everyone can see it.
template <class T>
DP_FN inline void declare(T& word, T value) {
#ifdef __CUDA_ARCH__
  SharedWord<T>(word).store(value, order::memory_order_relaxed);
  cuda::atomic_thread_fence(order::memory_order_seq_cst, cuda::thread_scope_system);
#else
  SharedWord<T>(word).exchange(value, order::memory_order_seq_cst);
#endif
}

template <class T>
DP_FN inline void post(T& word, T value) {
#ifdef __CUDA_ARCH__
  SharedWord<T>(word).store(value, order::memory_order_relaxed);
#else
  SharedWord<T>(word).store(value, order::memory_order_release);
#endif
}

template <class T>
DP_FN inline void publish(T& word, T value) {
  SharedWord<T>(word).store(value, order::memory_order_release);
}

// One load, whole and in no order: for counts, and for memory that another process may write to at any time, where a
// plain load may be done twice, once to check and once to use.
template <class T>
DP_FN inline T glance(const T& word) {
  return SharedWord<T>(const_cast<T&>(word)).load(order::memory_order_relaxed);
}

template <class T>
DP_FN inline void show(T& word, T value) {
  SharedWord<T>(word).store(value, order::memory_order_relaxed);
}

// Stores `value` if the word is still `expected`.
template <class T>
DP_FN inline void replace(T& word, T expected, T value) {
  SharedWord<T>(word).compare_exchange_strong(expected, value, order::memory_order_acq_rel);
}

// For sums whose order does not matter, of one team. Returns what the word was.
template <class T>
DP_FN inline T add(T& word, T more) {
  return SharedWord<T>(word).fetch_add(more, order::memory_order_relaxed);
}

// Begins to load what is soon needed, where a load would be waited for.
template <class T>
DP_FN inline void prefetch([[maybe_unused]] const T& word) {
#ifdef __CUDA_ARCH__
  asm volatile("prefetch.global.L1 [%0];" ::"l"(&word));
#endif
}

template <class T>
DP_FN constexpr T least(T a, T b) {
  return b < a ? b : a;
}

template <class T>
DP_FN constexpr T most(T a, T b) {
  return a < b ? b : a;
}

}  // namespace dp
