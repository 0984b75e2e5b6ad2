// The protocol of a ring: a record is there when its flag says so, and the flag is stored last. An index counts the
// records of an epoch modulo 2^32; a slot that holds an older lap's or an older epoch's record has another flag.
#pragma once
#include "common/layout.hpp"
#include "common/portable.hpp"

namespace dp {

static_assert((cfg::kRequestSlots & (cfg::kRequestSlots - 1)) == 0 && (cfg::kTokenSlots & (cfg::kTokenSlots - 1)) == 0,
              "indices wrap at 2^32, so a ring's slots are a power of two");

DP_FN constexpr uint64_t record_flag(uint32_t epoch, uint32_t index) {
  return uint64_t{epoch} << 32 | static_cast<uint32_t>(index + 1);
}

// A frontend claims a ring with an odd epoch, and gives it up, or is found dead, with the even one that follows.
DP_FN constexpr bool is_open(uint32_t epoch) { return epoch % 2 == 1; }

// How many records from index `read` on are there, at most `limit`.
template <class Record, uint32_t kSlots>
DP_RARE uint32_t visible(const Record (&records)[kSlots], uint32_t epoch, uint32_t read, uint32_t limit = kSlots) {
  uint32_t n = 0;
  while (n < limit && observe(records[(read + n) % kSlots].flag) == record_flag(epoch, read + n)) ++n;
  return n;
}

}  // namespace dp
