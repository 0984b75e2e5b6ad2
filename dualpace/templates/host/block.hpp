// Where things lie in a KV block and in a row of Q, K and V. A block is one page in one layer: K[kv head][token][d], V
// likewise.
#pragma once
#include "common/config.hpp"

namespace dp::DP_ISA {

constexpr int kQkvSize = (cfg::kHeads + 2 * cfg::kKvHeads) * cfg::kHeadDim;
constexpr int64_t kValueOffset = static_cast<int64_t>(cfg::kKvHeads) * cfg::kPageSize * cfg::kHeadDim;
constexpr int64_t kBlockElements = 2 * kValueOffset;

// Elements from a block's begin to the key of `kv_head` at `offset` in the page.
constexpr int64_t head_offset(int kv_head, int offset) {
  return (static_cast<int64_t>(kv_head) * cfg::kPageSize + offset) * cfg::kHeadDim;
}

}  // namespace dp::DP_ISA
