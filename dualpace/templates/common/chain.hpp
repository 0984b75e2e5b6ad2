// Queues of requests: doubly linked through the request slots, so that any of them can go at once. Changed by the
// leader.
#pragma once
#include "common/state.hpp"

namespace dp {

// At the front if `before` is kNone.
DP_FN inline void insert_after(Requests& requests, Chain& chain, int32_t before, int32_t request) {
  const int32_t after = before == kNone ? chain.head : requests.next[before];
  requests.previous[request] = before;
  requests.next[request] = after;
  (before == kNone ? chain.head : requests.next[before]) = request;
  (after == kNone ? chain.tail : requests.previous[after]) = request;
}

DP_FN inline void unlink(Requests& requests, Chain& chain, int32_t request) {
  const int32_t next = requests.next[request], previous = requests.previous[request];
  (previous == kNone ? chain.head : requests.next[previous]) = next;
  (next == kNone ? chain.tail : requests.previous[next]) = previous;
}

}  // namespace dp
