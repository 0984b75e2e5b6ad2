// What an attention kernel asks for while the kernel before it ends.
#pragma once
#include "common/portable.hpp"
#include "cuda/attention.cuh"
#include "cuda/ptx.cuh"

namespace dp {

// What a CTA asks the L2 for while the kernel before this one ends: half of what its copies will have on their way.
constexpr int kPrefetchRows = (64 << 10) / (2 * cfg::kHeadDim * cfg::kElementBytes);
constexpr int kPrefetchPart = least(cfg::kPageSize, 16);

// Asks for the first keys and values of a task. They may not be written yet: what is read later is not this.
inline __device__ void prefetch_first(const AttentionTask& task, const int32_t* tables, const Element* pool) {
  const int offset = static_cast<int>(threadIdx.x) * kPrefetchPart;
  const int key = task.begin / kPrefetchPart * kPrefetchPart + offset;
  if (offset >= kPrefetchRows || key >= task.end) return;
  const int page = tables[task.row_slot * cfg::kPagesPerRow + key / cfg::kPageSize];
  const Element* from = pool + key_offset(page, kv_head_of(task.slice), key % cfg::kPageSize);
  constexpr int kBytes = kPrefetchPart * cfg::kHeadDim * cfg::kElementBytes;
  prefetch(from, kBytes);
  prefetch(from + kValueOffset, kBytes);
}

}  // namespace dp
