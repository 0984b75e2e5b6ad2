// Whether the slow lane takes one more row, after steps that took, waited and missed what the arguments say:
// `pace ROWS STEP_NS STALL_NS MISSES COPY_NS SPARSE TOKENS STEPS`. Prints 1 or 0.
#include <cstdio>
#include <cstdlib>
#include <memory>

#include "common/scheduler.hpp"

int main(int count, char** arguments) {
  using namespace dp;
  if (count != 9) return 2;
  const auto number = [&](int i) { return std::strtoull(arguments[i], nullptr, 10); };
  const auto memory = std::make_unique<StateMemory>();
  const auto lanes = std::make_unique<StepBuffers[]>(kLaneCount);
  State s(*memory);
  start(s, lanes.get(), cfg::kVocab);
  StepBuffers& b = lanes[static_cast<size_t>(Lane::kSlow)];
  const int rows = static_cast<int>(number(1));
  for (int i = 0; i < rows; ++i) {
    s.rows.request[i] = b.row_slot[i] = i;
    s.recall->row[i].sparse = 1;
    s.requests.sparse[i] = true;
  }
  b.rows = static_cast<uint32_t>(rows);
  b.kind = static_cast<uint32_t>(StepKind::kDecode);
  for (uint64_t step = 1; step <= number(8); ++step) {
    for (int i = 0; i < rows; ++i) s.recall->row[i].missed += static_cast<uint32_t>(number(4));
    const uint64_t copied = step * number(1) * number(4);
    s.recall->meter = {number(2), number(3), copied, copied * number(5)};
    measure(s, b);
  }
  const int32_t q = rows;
  s.requests.sparse[q] = number(6) != 0;
  s.requests.length[q] = static_cast<int32_t>(number(7));
  std::printf("%d\n", link_has_time(s, q) ? 1 : 0);
}
