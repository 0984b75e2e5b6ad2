// What an attention kernel asks for while the kernel before it ends.
#pragma once
#include "common/portable.hpp"
#include "cuda/attention.cuh"
#include "cuda/ptx.cuh"

namespace dp {

constexpr int kPrefetchKeys = 128;
constexpr int kPrefetchPart = least(cfg::kPageSize, 16);  // contiguous

// Asks the L2 for the first keys and values of a task. They may not be written yet: nothing is done with them here.
inline __device__ void prefetch_first(const AttentionTask& task, const int32_t* tables, const Element* pool) {
  const int offset = static_cast<int>(threadIdx.x) * kPrefetchPart;
  const int key = task.begin / kPrefetchPart * kPrefetchPart + offset;
  if (offset >= kPrefetchKeys || key >= task.end) return;
  const int page = tables[task.row_slot * cfg::kPagesPerRow + key / cfg::kPageSize];
  const Element* from = pool + key_offset(page, kv_head_of(task.slice), key % cfg::kPageSize);
  constexpr int kBytes = kPrefetchPart * cfg::kHeadDim * cfg::kElementBytes;
  prefetch(from, kBytes);
  prefetch(from + kValueOffset, kBytes);
}

}  // namespace dp
