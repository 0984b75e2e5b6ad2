// What pools of memory are made of: items by number, free lists of them, and where the contents of a block are.
#pragma once
#include <cstdint>

namespace dp {

constexpr int kNone = -1;

template <int N>
struct FreeList {
  int32_t count;
  int32_t item[N];
};

// Where a block's contents are. Filling: it takes tokens. Sealed: full, never written again. The last three are of
// blocks that leave for host memory, are there, or come back.
enum class Residency : uint8_t { kFree, kFilling, kSealed, kLeaving, kHost, kArriving };

constexpr int power_of_two(int least_value) {
  int n = 1;
  while (n < least_value) n *= 2;
  return n;
}

}  // namespace dp
