// Read bandwidth of memory. As a program: in GB/s, best of several passes over 1 GiB in huge pages, with
// OMP_NUM_THREADS threads. As a library: one pass over memory of the caller's.
#include <sys/mman.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>

// Reads `count` words, a multiple of 64, in order, a run of them a thread; returns their sum.
extern "C" uint64_t read_words(const uint64_t* words, int64_t count) {
  uint64_t sum = 0;
#pragma omp parallel for schedule(static) reduction(+ : sum)
  for (int64_t line = 0; line < count; line += 64) {
    for (int64_t i = line; i < line + 64; i += 8) __builtin_prefetch(words + i + 512);
    for (int64_t i = line; i < line + 64; ++i) sum += words[i];
  }
  return sum;
}

int main() {
  constexpr int64_t kBytes = int64_t{1} << 30;
  constexpr int64_t kPage = int64_t{2} << 20;
  constexpr int64_t kWords = kBytes / 8;
  auto* words = static_cast<uint64_t*>(std::aligned_alloc(kPage, kBytes));
  madvise(words, kBytes, MADV_HUGEPAGE);
#pragma omp parallel for schedule(static)
  for (int64_t i = 0; i < kWords; ++i) words[i] = static_cast<uint64_t>(i);
  double best = 0;
  uint64_t sum = 0;
  for (int pass = 0; pass < 8; ++pass) {
    const auto start = std::chrono::steady_clock::now();
    sum += read_words(words, kWords);
    const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
    if (kBytes / elapsed.count() > best) best = kBytes / elapsed.count();
  }
  std::printf("%.2f\n", best / 1e9);
  return sum == 0;
}
