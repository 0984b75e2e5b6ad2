// How much the slow lane may recall: what its rows bring back for a token has to take the link no longer than the lane
// computes. What is measured and what is predicted of it are whole numbers, so that every build admits the same rows.
#pragma once
#include "common/residency.hpp"
#include "common/state.hpp"

namespace dp {

// Towards what was seen last, by an eighth.
DP_FN constexpr uint64_t smooth(uint64_t mean, uint64_t seen) {
  return mean == 0 ? seen : seen > mean ? mean + (seen - mean) / 8 : mean - (mean - seen) / 8;
}

// Blocks that a token of an exact row has to bring back, in all layers.
DP_FN constexpr uint64_t exact_misses(int pages) {
  const int n = most(0, candidates(pages));
  return n <= kChoiceSlots ? 0 : static_cast<uint64_t>(n - kKeptBlocks) * kRecallLayers;
}

// What a row's next token is expected to bring back, in 256ths of a block: what its last ones did, or the lane's.
DP_FN inline uint64_t expected_misses(const State& s, int32_t slot) {
  const SlowRow& row = s.recall->row[slot];
  if (!chooses(s, s.rows.request[slot])) return exact_misses(row.pages) << 8;
  return row.decoded ? row.misses : s.recall->pace.misses;
}

// The leader's, after a step of the slow lane: what its rows had to bring back, and of a step in which all of them
// decoded, how long it computed, waited and copied.
DP_FN inline void measure(State& s, const StepBuffers& b) {
  RecallMemory& r = *s.recall;
  Pace& pace = r.pace;
  const bool decodes = b.kind == static_cast<uint32_t>(StepKind::kDecode);
  for (int i = 0; i < static_cast<int>(b.rows); ++i) {
    SlowRow& row = r.row[b.row_slot[i]];
    const uint32_t missed = row.missed - row.missed_before, chosen = row.chosen - row.chosen_before;
    row.missed_before = row.missed;
    row.chosen_before = row.chosen;
    s.counters.recall_misses += missed;
    s.counters.recall_hits += chosen - missed;
    s.counters.recalled_bytes += missed * kBlockBytes;
    if (!decodes || row.sparse == 0) continue;
    row.misses = row.decoded ? smooth(row.misses, uint64_t{missed} << 8) : uint64_t{missed} << 8;
    row.decoded = true;
    pace.misses = smooth(pace.misses, uint64_t{missed} << 8);
  }
  const LaneMeter& meter = r.meter;
  const uint64_t copied = meter.copied - pace.copied, took = meter.copy_ns - pace.copy_ns;
  pace.copied = meter.copied;
  pace.copy_ns = meter.copy_ns;
  if (copied > 0) pace.block_ns = smooth(pace.block_ns, (took << 8) / copied);
  s.counters.slow_steps += 1;
  s.counters.slow_step_ns += meter.step_ns;
  s.counters.recall_stall_ns += meter.stall_ns;
  if (!decodes) return;
  pace.shadow_ns = smooth(pace.shadow_ns, meter.step_ns - least(meter.stall_ns, meter.step_ns));
  pace.stall_ns = smooth(pace.stall_ns, meter.stall_ns);
}

// Whether the link has time for one more row, which is a request's of so many tokens. The lane always has one row, and
// no other before it has been measured. What the lane waits as it is counts as if the link had more to do.
DP_FN inline bool link_has_time(const State& s, int32_t q) {
  const RecallMemory& r = *s.recall;
  uint64_t misses = 0;
  bool alone = true;
  for (int32_t slot = 0; slot < kSlowRows; ++slot) {
    if (s.rows.request[slot] == kNone || s.rows.paused[slot]) continue;
    misses += expected_misses(s, slot);
    alone = false;
  }
  if (alone) return true;
  if (r.pace.shadow_ns == 0) return false;
  misses += chooses(s, q) ? r.pace.misses : exact_misses(pages_for(s.requests.length[q])) << 8;
  return (misses >> 8) * r.pace.block_ns / 256 + r.pace.stall_ns <= r.pace.shadow_ns;
}

}  // namespace dp
