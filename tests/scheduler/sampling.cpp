// Every part of the sampler over rows of many kinds, for the sanitizers. Prints a checksum of all results; argument:
// the number of threads, which must not change it.
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <thread>
#include <vector>

#include "common/adjust.hpp"
#include "common/sampler.hpp"

namespace {

using namespace dp;

struct Row {
  std::vector<float> logits, adjusted;
  std::vector<int32_t> history;
  SamplerMemory memory = {};
  TopLogprobs top = {};
  int32_t token = 0;
  float logprob = 0.0f;
};

// In [0, 1).
float uniform(uint32_t seed, uint32_t position) {
  return static_cast<float>(random_word(seed, position) >> 8) * 0x1p-24f;
}

// Some rows have ties, some minus infinities, one a NaN, one an infinity.
Row make_row(uint32_t seed, int n) {
  Row row;
  for (int i = 0; i < n; ++i) {
    const float draw = 8.0f * uniform(seed, static_cast<uint32_t>(i)) - 4.0f;
    row.logits.push_back(seed % 3 == 0 ? static_cast<float>(static_cast<int>(draw)) : draw);
    if (seed % 4 == 1 && i % 5 != 0) row.logits.back() = -std::numeric_limits<float>::infinity();
  }
  if (seed == 6) row.logits[3] = std::numeric_limits<float>::quiet_NaN();
  if (seed == 7) row.logits[5] = std::numeric_limits<float>::infinity();
  for (int i = 0; i < 500; ++i) {
    row.history.push_back(static_cast<int32_t>(uniform(seed, static_cast<uint32_t>(9000 + i)) * 1.1f * float(n)));
  }
  row.adjusted.resize(row.logits.size());
  return row;
}

template <class Team>
void sample(Team& team, Row& row, uint32_t seed) {
  const int n = static_cast<int>(row.logits.size());
  const int32_t ids[] = {0, 3, n - 1, n + 4}, banned[] = {2, n + 1};
  const float biases[] = {1.0f, -100.0f, 100.0f, 100.0f};
  const Adjustment adjustment = {200, 500, 1.2f, 0.5f, -0.1f, 4, 2, ids, biases, banned};
  const Sampling params = {seed, seed % 2 == 0 ? 0.8f : 0.0f, 0.9f, 0.01f, 40, 1.0f, 0.0f, 0.0f, 0, 0};
  Sampler<Team> sampler(team, row.memory);
  const Scale scale = sampler.rank(row.logits.data(), n, kMaxTopLogprobs, row.top);
  const float* adjusted = adjust(
      team, row.logits.data(), n, adjustment, [&](int32_t at) { return row.history[static_cast<size_t>(at)]; },
      row.adjusted.data());
  const int32_t token = sampler.draw(adjusted, n, params, seed);
  if (!team.leader()) return;
  row.token = token;
  row.logprob = token < 0 ? 0.0f : scale.logprob(row.logits[static_cast<size_t>(token)]);
}

uint32_t digest(const Row& row) {
  uint32_t sum = bits_of(row.logprob) * 31 + static_cast<uint32_t>(row.token);
  if (row.token < 0) return sum;
  for (int k = 0; k < kMaxTopLogprobs; ++k) {
    sum = sum * 31 + static_cast<uint32_t>(row.top.token[k]);
    sum = sum * 31 + bits_of(row.top.logprob[k]);
  }
  return sum;
}

}  // namespace

int main(int, char** arguments) {
  const int threads = std::atoi(arguments[1]);
  uint32_t sum = 0;
  for (const int n : {21, 255, 1000}) {
    for (uint32_t seed = 0; seed < 12; ++seed) {
      Row row = make_row(seed, n);
      if (threads == 1) {
        SerialTeam team;
        sample(team, row, seed);
      } else {
        ThreadTeam::Meeting meeting(threads);
        std::vector<std::jthread> members;
        for (int t = 0; t < threads; ++t) {
          members.emplace_back([&, t] {
            ThreadTeam team(meeting, t);
            sample(team, row, seed);
          });
        }
      }
      sum = sum * 31 + digest(row);
    }
  }
  std::printf("%u\n", sum);
  return 0;
}
