// Queues of requests: doubly linked through the request slots, so that any of them can go at once. Changed by the
// leader.
#pragma once
#include "common/state.hpp"

namespace dp {

DP_FN inline void push_back(Requests& requests, Chain& chain, int32_t request) {
  requests.next[request] = kNone;
  requests.previous[request] = chain.tail;
  (chain.tail == kNone ? chain.head : requests.next[chain.tail]) = request;
  chain.tail = request;
}

DP_FN inline void push_front(Requests& requests, Chain& chain, int32_t request) {
  requests.previous[request] = kNone;
  requests.next[request] = chain.head;
  (chain.head == kNone ? chain.tail : requests.previous[chain.head]) = request;
  chain.head = request;
}

DP_FN inline void unlink(Requests& requests, Chain& chain, int32_t request) {
  const int32_t next = requests.next[request], previous = requests.previous[request];
  (previous == kNone ? chain.head : requests.next[previous]) = next;
  (next == kNone ? chain.tail : requests.previous[next]) = previous;
}

}  // namespace dp
