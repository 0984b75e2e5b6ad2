// Blocks between the host pool and the pools of the card: recalls one way, what leaves the other.
//
// Grid: few CTAs. Two recall as fast as the link; one is enough for what leaves, and more slow the step down.
#include "common/recall.hpp"
#include "cuda/element.cuh"
#include "cuda/transfer.cuh"

namespace dp {
namespace {

using BlockCopy = UnitCopy<BlockQueue, 2 * kValueOffset * cfg::kElementBytes>;

}  // namespace

extern "C" {
__constant__ int64_t dp_transfer_shared_bytes = sizeof(BlockCopy::Shared);
__constant__ int64_t dp_transfer_queue_bytes = sizeof(BlockQueue);  // what the host has to allocate, zeroed
}

// Copies blocks from `from` to `to`, each of which has them one after the other, list by list until that of the ticket
// `until`: lists may be published meanwhile, and have to be.
extern "C" __global__ void __launch_bounds__(BlockCopy::kThreads, 1)
    dp_transfer(BlockQueue* queue, const std::byte* from, std::byte* to) {
  extern __shared__ __align__(128) std::byte memory[];
  BlockCopy::run(*queue, from, to, *reinterpret_cast<BlockCopy::Shared*>(memory));
}

}  // namespace dp
