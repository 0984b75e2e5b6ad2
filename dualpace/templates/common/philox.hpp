// Philox4x32-10: a counter-based generator, so that a random number depends on nothing but its seed and its counter.
// Salmon, Moraes, Dror, Shaw: "Parallel Random Numbers: As Easy as 1, 2, 3", SC 2011.
#pragma once
#include <cstdint>

#include "common/portable.hpp"

namespace dp {

struct Philox {
  uint32_t word[4];
};

DP_FN constexpr Philox philox(Philox counter, uint32_t key0, uint32_t key1) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t a = uint64_t{0xD2511F53} * counter.word[0], b = uint64_t{0xCD9E8D57} * counter.word[2];
    counter = {static_cast<uint32_t>(b >> 32) ^ counter.word[1] ^ key0, static_cast<uint32_t>(b),
               static_cast<uint32_t>(a >> 32) ^ counter.word[3] ^ key1, static_cast<uint32_t>(a)};
    key0 += 0x9E3779B9;
    key1 += 0xBB67AE85;
  }
  return counter;
}

// The number of the token at `position`.
DP_FN constexpr uint32_t random_word(uint64_t seed, uint32_t position) {
  return philox({{position, 0, 0, 0}}, static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)).word[0];
}

}  // namespace dp
