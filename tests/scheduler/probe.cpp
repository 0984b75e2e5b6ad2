// The host engine with a view inside: what tests check after each step, and parts of the sampler on their own.
#include <functional>
#include <thread>

#include "host/engine.cpp"

namespace {

using namespace dp;

// Every item of a pool is in its free list or owned exactly once.
class Ledger {
 public:
  explicit Ledger(int n) : owners_(static_cast<size_t>(n)) {}
  bool own(int item) {
    return item >= 0 && item < static_cast<int>(owners_.size()) && ++owners_[static_cast<size_t>(item)] == 1;
  }
  bool complete() const {
    for (int owners : owners_) {
      if (owners != 1) return false;
    }
    return true;
  }

 private:
  std::vector<int> owners_;
};

template <class List>
bool own_all(Ledger& ledger, const List& list) {
  for (int i = 0; i < list.count; ++i) {
    if (!ledger.own(list.item[i])) return false;
  }
  return true;
}

const char* broken_pages(const State& s, const StepBuffers& b, int g) {
  Ledger ledger(cfg::kPages[g]);
  if (!own_all(ledger, s.pages.free[g])) return "a page is free twice";
  for (int i = 0; i < s.pages.free[g].count; ++i) {
    if (s.pages.state[g].residency[s.pages.free[g].item[i]] != Residency::kFree) return "a free page has contents";
  }
  for (int slot = 0; slot < Rows::N; ++slot) {
    const int32_t q = s.rows.request[slot];
    for (int entry = 0; entry < cfg::kPagesPerRow; ++entry) {
      const bool held = q != kNone && entry >= s.rows.first[g][slot] && entry < s.rows.end[g][slot];
      const int32_t page = b.table[g][slot][entry];
      if (!held) {
        if (page != kNone) return "a table has a page that the row does not hold";
        continue;
      }
      if (!ledger.own(page)) return "a page is owned twice";
      const bool full = (entry + 1) * cfg::kPageSize <= s.requests.computed[q];
      if (s.pages.state[g].residency[page] != (full ? Residency::kSealed : Residency::kFilling)) {
        return "a page is sealed too early or too late";
      }
    }
  }
  return ledger.complete() ? nullptr : "a page is lost";
}

const char* broken_requests(const State& s) {
  Ledger slots(Requests::N), history(cfg::kHistoryPages), rows(Rows::N);
  if (!own_all(slots, s.requests.free)) return "a request slot is free twice";
  if (!own_all(history, s.history.free)) return "a history page is free twice";
  if (!own_all(rows, s.rows.free)) return "a row slot is free twice";
  int fresh = 0;
  for (int r = 0; r < cfg::kRings; ++r) {
    const RingState& ring = s.rings[r];
    int queued = 0, previous = kNone;
    for (int32_t q = ring.queue.head; q != kNone; previous = q, q = s.requests.next[q]) {
      if (s.requests.phase[q] != Phase::kQueued || s.requests.ring[q] != r) return "a queue holds what does not wait";
      if (s.requests.previous[q] != previous) return "a queue's links disagree";
      if (!slots.own(q)) return "a request is in two places";
      if (s.requests.fresh[q]) fresh += s.requests.history_count[q];
      ++queued;
    }
    if (queued != ring.queued || ring.queue.tail != previous) return "a queue's count is wrong";
    for (int32_t q = ring.ended.head; q != kNone; q = s.requests.next[q]) {
      if (s.requests.phase[q] != Phase::kEnded || s.requests.finish[q] == Finish::kNone) return "an end without reason";
      if (s.requests.history_count[q] != 0) return "an ended request holds history";
      if (!slots.own(q)) return "a request is in two places";
    }
  }
  if (fresh != s.history.queued) return "the queue's share of the history is wrong";
  for (int i = 0; i < s.rows.running_count; ++i) {
    const int32_t slot = s.rows.running[i], q = s.rows.request[slot];
    if (!rows.own(slot) || !slots.own(q)) return "a row runs twice";
    if (s.requests.phase[q] != Phase::kRunning || s.requests.row[q] != slot) return "row and request disagree";
    if (s.requests.computed[q] >= s.requests.length[q]) return "a row has nothing to compute";
  }
  for (int q = 0; q < Requests::N; ++q) {
    if (s.requests.phase[q] == Phase::kFree) continue;
    for (int i = 0; i < s.requests.history_count[q]; ++i) {
      if (!history.own(s.requests.history[q][i])) return "a history page is owned twice";
    }
  }
  if (!slots.complete()) return "a request slot is lost";
  if (!rows.complete()) return "a row slot is lost";
  if (!history.complete()) return "a history page is lost";
  return nullptr;
}

void together(int threads, const std::function<void(ThreadTeam&)>& run) {
  ThreadTeam::Meeting meeting(threads);
  std::vector<std::jthread> members;
  for (int t = 0; t < threads; ++t) {
    members.emplace_back([&, t] {
      ThreadTeam team(meeting, t);
      run(team);
    });
  }
}

// Members that share a meeting, or one thread alone.
template <class Run>
void with_team(int threads, Run run) {
  if (threads > 1) return together(threads, run);
  SerialTeam team;
  run(team);
}

}  // namespace

extern "C" {

// What is wrong with the state between two steps, or null.
const char* probe_invariants(void* handle) {
  const Engine& engine = engine_of(handle);
  for (int g = 0; g < cfg::kGroups; ++g) {
    if (const char* fault = broken_pages(*engine.state, *engine.buffers, g)) return fault;
  }
  return broken_requests(*engine.state);
}

// 1 if no request is anywhere and everything is free.
int probe_at_rest(void* handle) {
  const State& s = *engine_of(handle).state;
  bool free = s.requests.free.count == Requests::N && s.rows.free.count == Rows::N;
  free = free && s.history.free.count == cfg::kHistoryPages;
  for (int g = 0; g < cfg::kGroups; ++g) free = free && s.pages.free[g].count == cfg::kPages[g];
  return free ? 1 : 0;
}

void probe_schedule(void* handle, int threads) {
  Engine& engine = engine_of(handle);
  together(threads, [&](ThreadTeam& team) { schedule(team, *engine.state, *engine.buffers, engine.memory); });
}

void probe_draw(const float* logits, int n, float temperature, int top_k, float top_p, float min_p, uint64_t seed,
                uint32_t position, int threads, int32_t* token) {
  const Sampling params = {seed, temperature, top_p, min_p, top_k, 1.0f, 0.0f, 0.0f, 0};
  std::vector<float> scratch(static_cast<size_t>(n));
  SamplerMemory memory;
  with_team(threads, [&](auto& team) {
    const int32_t drawn = Sampler(team, memory).draw(logits, n, params, position, scratch.data());
    if (team.leader()) *token = drawn;
  });
}

// The logprobs of all ids, and the `count` best.
void probe_rank(const float* logits, int n, int count, int threads, float* logprobs, TopLogprobs* top) {
  SamplerMemory memory;
  with_team(threads, [&](auto& team) {
    const Scale scale = Sampler(team, memory).rank(logits, n, count, *top);
    team.each(n, [&](int i) { logprobs[i] = scale.logprob(logits[i]); });
  });
}

void probe_adjust(const float* logits, int n, const int32_t* history, int prompt, int length, float repetition,
                  float presence, float frequency, int bias_count, const int32_t* bias_id, const float* bias,
                  int banned_count, const int32_t* banned, int threads, float* adjusted) {
  const Adjustment adjustment = {prompt,     length,       repetition, presence, frequency,
                                 bias_count, banned_count, bias_id,    bias,     banned};
  with_team(threads, [&](auto& team) {
    const float* result = adjust(team, logits, n, adjustment, [&](int32_t at) { return history[at]; }, adjusted);
    if (result == logits) team.each(n, [&](int i) { adjusted[i] = logits[i]; });
  });
}

void probe_philox(const uint32_t* counter, const uint32_t* key, uint32_t* out) {
  const Philox drawn = philox({{counter[0], counter[1], counter[2], counter[3]}}, key[0], key[1]);
  for (int i = 0; i < 4; ++i) out[i] = drawn.word[i];
}

void probe_exp(const float* x, float* y, int n) {
  for (int i = 0; i < n; ++i) y[i] = exact_exp(x[i]);
}

void probe_log(const float* x, float* y, int n) {
  for (int i = 0; i < n; ++i) y[i] = exact_log(x[i]);
}

}  // extern "C"
