// What lets one source compile with g++ for the host and with nvcc for the device: function spaces and atomic flags.
#pragma once
#include <cstdint>

#ifdef __CUDACC__
#include <cuda/atomic>
#define DP_FN __host__ __device__
#else
#include <atomic>
#define DP_FN
#endif

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

template <class T>
DP_FN inline void publish(T& word, T value) {
  SharedWord<T>(word).store(value, order::memory_order_release);
}

// For counts that order nothing: whole, but no more.
template <class T>
DP_FN inline T glance(const T& word) {
  return SharedWord<T>(const_cast<T&>(word)).load(order::memory_order_relaxed);
}

template <class T>
DP_FN inline void show(T& word, T value) {
  SharedWord<T>(word).store(value, order::memory_order_relaxed);
}

// For sums whose order does not matter, of one team. Returns what the word was.
template <class T>
DP_FN inline T add(T& word, T more) {
  return SharedWord<T>(word).fetch_add(more, order::memory_order_relaxed);
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
