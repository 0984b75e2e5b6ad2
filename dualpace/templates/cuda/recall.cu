// A layer of rows with KV in host memory, between its scores and its attention: which blocks are attended to, where
// they are, and which have to be brought there.
#include "common/recall.hpp"
#include "cuda/ptx.cuh"

namespace dp {
namespace {

using ChoiceTeam = CtaTeamOf<512, 4>;
constexpr unsigned kAwaitNapNs = 100;

// In shared memory.
struct Choice {
  ChoiceTeam::Meeting meeting;
  RecallWork work;
  uint32_t ticket;
  int32_t first;  // of the row's recalls in the list
};
static_assert(sizeof(Choice) <= kSmBytes - 1024, "lower target.kv_budget or offload.selection.blocks");

// The list that a layer's CTAs make together: what it has so far, and rows that are done. Zero between layers.
struct Making {
  int32_t items;
  uint32_t arrived;
};

__device__ void await_list(const BlockQueue& queue, uint32_t ticket) {
  while (!includes(observe(queue.ended), ticket)) __nanosleep(kAwaitNapNs);
}

}  // namespace

extern "C" {
__constant__ int64_t dp_choose_shared_bytes = sizeof(Choice);
// What the host has to allocate for `rows` and for `making`, zeroed.
__constant__ int64_t dp_slow_rows_bytes = sizeof(SlowRow[kSlowRows]);
__constant__ int64_t dp_making_bytes = sizeof(Making);
}

// For each row of the step whose token chooses: what it attends to in `layer` by `scores` of dp_score.
// Fills `view`, from which attention works and which has no keys for other rows, and the next list of `queue`, which is
// there when the last row is done; their parts of it are in no order. Grid: a CTA a row, or more.
extern "C" __global__ void __launch_bounds__(ChoiceTeam::kThreads)
    dp_choose(const StepBuffers* step, StepBuffers* view, int layer, SlowRow* rows, const uint32_t* scores,
              BlockQueue* queue, Making* making) {
  extern __shared__ __align__(16) unsigned char shared[];
  Choice& choice = *reinterpret_cast<Choice*>(shared);
  launch_dependents();
  wait_dependency();
  const int r = static_cast<int>(blockIdx.x), count = static_cast<int>(step->rows);
  if (r >= count) return;
  ChoiceTeam team(choice.meeting);
  RecallWork& work = choice.work;
  SlowRow& row = rows[step->row_slot[r]];
  LayerCache& cache = row.layer[layer];
  if (team.leader()) {
    choice.ticket = observe(queue->published) + 1;
    await_list(*queue, choice.ticket - BlockQueue::kPlaces);
  }
  int context = 0;
  if (row.sparse != 0) {
    scores += r * cfg::kPagesPerRow;
    const int chosen = choose(team, row.pages, [&](int i) { return scores[i]; }, work);
    const auto now = static_cast<uint32_t>(step->step);
    const int misses = place(team, cache, chosen, now, work, [](int, int32_t, int) {});
    if (team.leader()) choice.first = add(making->items, misses);
    // The token sees all of these blocks, whose keys are rotated already: they are a row of their own.
    const int pages = tabulate(team, row, cache, chosen, work, view->table[kFull][r]);
    context = step->context[r] - (row.pages - pages) * cfg::kPageSize;
    team.sync();
    Transfer* items = queue->items_of(choice.ticket) + choice.first;
    team.each(misses, [&](int i) {
      items[i] = {host_block(layer, row.host[work.missed[i]]),
                  pool_block(layer, row.slot[kPinnedSlots + work.victim[i]], cfg::kPages[kFull])};
    });
    if (team.leader()) {
      row.chosen += static_cast<uint32_t>(chosen);
      row.missed += static_cast<uint32_t>(misses);
      row.recalled_with = choice.ticket;
    }
  }
  const int begin = step->query_begin[r], end = step->query_begin[r + 1];
  team.each(end - begin, [&](int i) {
    view->position[begin + i] = context - 1;
    view->token_row[begin + i] = r;
  });
  team.sync();
  if (!team.leader()) return;
  view->row_slot[r] = r, view->query_begin[r] = begin, view->context[r] = context;
  if (r + 1 == count) {
    view->query_begin[count] = end;
    view->rows = step->rows, view->tokens = step->tokens, view->kind = step->kind;
  }
  if (SharedWord<uint32_t>(making->arrived).fetch_add(1, order::memory_order_acq_rel) + 1 != step->rows) return;
  queue->count_of(choice.ticket) = glance(making->items);
  *making = {};
  publish(queue->published, choice.ticket);
}

// Until all lists that are published have ended: for a lane that has nothing else to do. One thread.
extern "C" __global__ void __launch_bounds__(1) dp_await(const BlockQueue* queue) {
  launch_dependents();
  wait_dependency();
  await_list(*queue, observe(queue->published));
}

}  // namespace dp
