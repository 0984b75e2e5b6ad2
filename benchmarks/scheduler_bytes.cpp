// What a step of decoding rows touches: distinct cache lines that `schedule` loads and stores, of the state, the step
// buffers and the rings. Compiled by clang with -fsanitize-coverage=func,trace-loads,trace-stores.
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "tests/scheduler/ring_file.hpp"

// In touched_lines.cpp, which is compiled without.
void start_counting();
size_t touched_lines();

// Prints the bytes of each of so many steps of so many rows.
int main(int count, char** arguments) {
  if (count != 3) return 2;
  const int rows = std::atoi(arguments[1]), steps = std::atoi(arguments[2]);
  dp::RingFile file;
  Engine& engine = engine_of(dp_engine_create(&file.memory(), dp::cfg::kVocab, 1));
  Frontend* frontend = file.claim(0);
  dp::RequestParams params = {};
  params.max_tokens = 1024;
  params.top_p = params.repetition_penalty = 1.0f;
  char error[256] = {};
  std::vector<dp::TokenRecord> records(dp::cfg::kTokenSlots);
  std::vector<dp::TopLogprobs> tops(dp::cfg::kTokenSlots);
  // No two rows share a prefix, and each step fills the pages of every sixteenth.
  for (int r = 0; r < rows; ++r) {
    const std::vector<int32_t> prompt(static_cast<size_t>(128 + r % 16), r);
    params.prompt_tokens = static_cast<uint32_t>(prompt.size());
    dp_ring_submit(frontend, static_cast<uint64_t>(r), &params, prompt.data(), error, sizeof error);
  }
  dp::StepBuffers& b = engine.buffers;
  for (int step = 0; step < steps;) {
    const bool decoding = b.rows == static_cast<uint32_t>(rows) && b.tokens == b.rows;
    start_counting();
    dp_engine_schedule(&engine, 0);
    const size_t lines = touched_lines();
    if (decoding) std::printf("%zu\n", 64 * lines), ++step;
    for (uint32_t i = 0; i < b.samples; ++i) b.sampled[i] = static_cast<int32_t>(b.sample_slot[i] + 2);
    dp_ring_wait(frontend, records.data(), tops.data(), static_cast<int>(dp::cfg::kTokenSlots), 0);
  }
}
