// The name of a prefix: a 64-bit number chained over its tokens. The ring library names the pages of a prompt, so that
// no step waits for the length of one; the scheduler goes on from there with the tokens it generates. A key only says
// where to look: what is found there is compared, so a wrong one finds nothing.
#pragma once
#include <cstdint>

#include "common/portable.hpp"

namespace dp {

constexpr uint64_t kEmptyPrefix = 0x6A09E667F3BCC908;  // the fraction of the square root of 2

DP_FN constexpr uint64_t extend_prefix(uint64_t key, int32_t token) {
  const uint64_t mixed = (key ^ static_cast<uint32_t>(token)) * 0x9E3779B97F4A7C15;
  return mixed ^ mixed >> 32;
}

}  // namespace dp
