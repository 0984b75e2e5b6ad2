// What moves between host memory and the GPU's: lists of units of one size, by their numbers in either place.
//
// Lists are done in the order in which they were published; a list's ticket is its number, from 1. What a list names
// belongs to the copy until that many lists have ended: who gives it to others, or reads what is to arrive, waits for
// that and has to know nothing else.
#pragma once
#include <cstdint>

#include "common/portable.hpp"

namespace dp {

struct Transfer {
  int32_t from, to;
};

// Tickets are modulo 2^32. The list of one is in place ticket % kLists, until which its publisher waits for the list
// that was there before to end.
template <int kLists, int kMost>
struct TransferQueue {
  static_assert((kLists & (kLists - 1)) == 0, "tickets that wrap go on in the next place");
  static constexpr uint32_t kPlaces = kLists;
  uint32_t published;      // lists that are there
  uint32_t until;          // the last ticket of a launch that copies
  uint32_t ended;          // lists of which everything has arrived
  uint32_t parts[kLists];  // of a list, that have arrived
  int32_t count[kLists];
  Transfer item[kLists][kMost];

  DP_FN uint32_t& parts_of(uint32_t ticket) { return parts[ticket % kLists]; }
  DP_FN int32_t& count_of(uint32_t ticket) { return count[ticket % kLists]; }
  DP_FN Transfer* items_of(uint32_t ticket) { return item[ticket % kLists]; }
};

// Whether `tickets`, those published or those ended, include `ticket`.
DP_FN constexpr bool includes(uint32_t tickets, uint32_t ticket) { return static_cast<int32_t>(tickets - ticket) >= 0; }

// One of the `parts` that the list of `ticket` is copied in has arrived, and the caller knows it. Whoever copies does
// lists in order, so whoever ends a list knows that those before it are there too, and it does not matter which of two
// is counted first.
template <class Queue>
DP_FN void arrive(Queue& queue, uint32_t ticket, uint32_t parts) {
  uint32_t& arrived = queue.parts_of(ticket);
  if (SharedWord<uint32_t>(arrived).fetch_add(1, order::memory_order_acq_rel) + 1 < parts) return;
  show(arrived, uint32_t{0});
  SharedWord<uint32_t>(queue.ended).fetch_add(1, order::memory_order_acq_rel);
}

}  // namespace dp
