// Rows whose blocks CPU workers attend to, without a model: `world STEPS SEED WORKERS PROCESSES MEMBERS`. Each row asks
// in layer after layer, with blocks of its own; what is not answered in time is recalled. Rows are aborted at any
// moment, and their blocks are at once another's. Workers dawdle, stop for longer than anybody waits, and die; so do
// processes of them, by signals. What a layer's partial results come to says which blocks were attended to, for which
// query.
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <new>
#include <thread>
#include <vector>

#include "../worlds.hpp"
#include "host/worker.hpp"

namespace {

using namespace dp;
using Clock = std::chrono::steady_clock;

constexpr int kPages = 6000, kMostBlocks = 40 * cfg::kItemBlocks;
constexpr uint64_t kLeastPatienceUs = 500, kMostPatienceUs = 100'000;
constexpr uint32_t kFirstTicket = 0u - 2000;
constexpr auto kLongestLayer = std::chrono::seconds(5);

uint64_t now_ns() { return static_cast<uint64_t>(std::chrono::nanoseconds(Clock::now().time_since_epoch()).count()); }
void nap(uint32_t us) { std::this_thread::sleep_for(std::chrono::microseconds(us)); }

// All that crosses between publisher and workers.
struct Shared {
  Cooperation cooperation;
  uint32_t block[kPages];  // the host pool
  uint32_t stopping;
  uint32_t patience_us;  // what an answer may take
};

// Of a head: what a block says to a query, and how loud.
struct Said {
  float value, score;
};
Said said(float query, uint32_t block, int head) {
  const uint64_t x = mix(static_cast<uint64_t>(query * 16) << 32 | (block + static_cast<uint32_t>(head)));
  return {static_cast<float>(x % 1024), static_cast<float>(x >> 32 & 7) / 8};
}

struct Died {};

// Attends as a model would, now and then at its leisure, or not to the end.
struct Attend {
  Shared& shared;
  std::shared_ptr<Random> random;
  bool mortal;

  void operator()(const float* query, const int32_t* block, int blocks, WorkAnswer& to) const {
    const uint32_t patience = glance(shared.patience_us);
    if (random->one_in(20)) nap(random->draw(patience / 4));
    if (random->one_in(100)) nap(patience + random->draw(2 * patience));
    for (int h = 0; h < cfg::kHeads; ++h) {
      float sum = 0, mass = 0;
      for (int b = 0; b < blocks; ++b) {
        const auto [value, score] =
            said(query[h * cfg::kHeadDim + b % cfg::kHeadDim], glance(shared.block[block[b]]), h);
        sum += std::exp(score) * value, mass += std::exp(score);
      }
      to.lse[h] = std::log(mass);
      for (float& out : to.out[h]) out = sum / mass;
    }
    if (mortal && random->one_in(300)) throw Died();
  }
};

// One worker until it is told to stop, or dies.
void work(Shared& shared, int desk, uint64_t seed, bool mortal) {
  try {
    Worker worker(shared.cooperation, desk, Attend{shared, std::make_shared<Random>(seed), mortal});
    worker.run([&] { return observe(shared.stopping) != 0; });
  } catch (const Died&) {
  }
}

struct Tally {
  uint64_t layers, aborted, recalled, died, stopped, full;
};

struct Row {
  uint32_t generation = 1, query = 0;
  std::vector<int32_t> blocks = {};
  std::vector<uint32_t> contents = {};  // of the blocks
  std::vector<int> answered = {};       // blocks, by partial result; 0: not there
  std::vector<WorkAnswer> partial = {};
  int awaited = 0;
  Clock::time_point asked = {};
};

class World {
 public:
  World(Shared& shared, uint64_t seed, int workers, bool processes, int members)
      : shared_(shared),
        c_(shared.cooperation),
        random_{seed},
        workers_(workers),
        processes_(processes),
        crew_(members) {
    show(shared_.patience_us, static_cast<uint32_t>(kLeastPatienceUs));
    show(c_.published, kFirstTicket);
    show(c_.claimed, kFirstTicket);
    ledger_->published = kFirstTicket;
    for (int32_t p = 0; p < kPages; ++p) free_.push_back(p);
    for (int i = 0; i < workers; ++i) hire(i);
  }
  ~World() {
    publish(shared_.stopping, 1u);
    for (auto& [pid, desk] : staff_) {
      kill(pid, SIGCONT);
      waitpid(pid, nullptr, 0);
    }
  }

  Tally play(uint64_t steps) {
    while (tally_.layers < steps) {
      for (int r = 0; r < cfg::kSlowRows; ++r) {
        Row& row = rows_[r];
        if (row.blocks.empty() && random_.one_in(2)) begin(r);
        if (row.blocks.empty()) continue;
        const auto waits = Clock::now() - row.asked;
        expect(waits < kLongestLayer, "a layer waits without bound");
        if (row.awaited == 0) {
          finish(row);
        } else if (random_.one_in(1000) && waits < std::chrono::microseconds(shared_.patience_us)) {
          abort_row(r);
        }
      }
      crew_.run([&](auto& team) {
        collect(team, c_, *ledger_, *scratch_, workers_, [&](const AwaitedWork& work, const WorkAnswer& answer) {
          if (team.leader()) take(work, answer);
        });
      });
      const uint64_t now = now_ns();
      recall([now](const AwaitedWork& work) { return work.due <= now; });
      disturb();
    }
    recall([](const AwaitedWork&) { return true; });
    return tally_;
  }

  const WorkLedger& ledger() const { return *ledger_; }

 private:
  void hire(int desk) {
    const uint64_t seed = mix(random_.state + static_cast<uint64_t>(desk) + 1);
    if (!processes_) {
      threads_[static_cast<size_t>(desk)] = std::jthread([this, desk, seed] {
        work(shared_, desk, seed, true);
        publish(dead_[static_cast<size_t>(desk)], 1u);
      });
      return;
    }
    const pid_t pid = fork();
    if (pid == 0) {
      work(shared_, desk, seed, false);
      _exit(0);
    }
    staff_[pid] = desk;
  }

  // Workers die, stop and come back.
  void disturb() {
    if (processes_) {
      for (auto [pid, desk] : std::map(staff_)) {
        if (random_.one_in(3000)) kill(pid, SIGSTOP), ++tally_.stopped;
        if (random_.one_in(500)) kill(pid, SIGCONT);
        if (!random_.one_in(5000)) continue;
        kill(pid, SIGKILL);
        waitpid(pid, nullptr, 0);
        staff_.erase(pid);
        ++tally_.died;
        hire(desk);
      }
    } else {
      for (int i = 0; i < workers_; ++i) {
        if (observe(dead_[static_cast<size_t>(i)]) == 0 || !random_.one_in(100)) continue;
        threads_[static_cast<size_t>(i)].join();
        show(dead_[static_cast<size_t>(i)], 0u);
        ++tally_.died;
        hire(i);
      }
    }
    if (random_.one_in(50)) nap(random_.draw(300));
  }

  // The row's next layer.
  void begin(int r) {
    Row& row = rows_[r];
    const auto wanted = 1 + random_.draw(random_.one_in(8) ? kMostBlocks : kMostBlocks / 12);
    if (free_.size() < wanted) return;
    row.asked = Clock::now();
    row.query = random_.draw(1000);
    float query[cfg::kHeads * cfg::kHeadDim];
    for (int i = 0; i < cfg::kHeads * cfg::kHeadDim; ++i) query[i] = query_of(row.query, i);
    for (uint32_t i = 0; i < wanted; ++i) {
      std::swap(free_[random_.draw(static_cast<uint32_t>(free_.size()))], free_.back());
      row.blocks.push_back(free_.back());
      free_.pop_back();
      row.contents.push_back(random_.draw(1 << 20));
      show(shared_.block[row.blocks.back()], row.contents.back());
    }
    const int blocks = static_cast<int>(wanted), items = work_items(blocks);
    row.answered.assign(static_cast<size_t>(items) + 1, 0);
    row.partial.resize(static_cast<size_t>(items) + 1);
    const uint64_t due = now_ns() + uint64_t{1000} * shared_.patience_us;
    int given = 0;
    crew_.run([&](auto& team) {
      ask(team, c_, r, query);
      const auto block_at = [&](int b) { return row.blocks[static_cast<size_t>(b)]; };
      const int count =
          give(team, c_, *ledger_, r, row.generation, static_cast<int>(row.query % 3), blocks, block_at, 0, due);
      if (team.leader()) given = count;
    });
    row.awaited = work_items(given);
    if (given < blocks) {
      ++tally_.full;
      attend(row, items, given, blocks - given);
    }
  }

  static float query_of(uint32_t query, int i) {
    return static_cast<float>(mix(static_cast<uint64_t>(query) << 20 | static_cast<uint64_t>(i)) % 4096) / 16;
  }

  void take(const AwaitedWork& work, const WorkAnswer& answer) {
    Row& row = rows_[work.row];
    expect(work.flag >> 32 == row.generation, "an item of a life that is over counts");
    const auto at = static_cast<size_t>(work.partial);
    expect(row.answered[at] == 0, "a partial result is there twice");
    row.partial[at] = answer;
    row.answered[at] = work.blocks;
    --row.awaited;
  }

  // What the device does itself.
  void attend(Row& row, int partial, int begin, int blocks) {
    const auto at = static_cast<size_t>(partial);
    WorkAnswer& to = row.partial[at];
    for (int h = 0; h < cfg::kHeads; ++h) {
      const auto [value, lse] = exact(row, h, begin, blocks);
      to.lse[h] = static_cast<float>(lse);
      for (float& out : to.out[h]) out = static_cast<float>(value);
    }
    row.answered[at] = blocks;
    ++tally_.recalled;
  }

  // Of a head, over some blocks. Workers number the query's elements by block within a split.
  static std::pair<double, double> exact(const Row& row, int h, int begin, int blocks) {
    constexpr int kSplitBlocks = cfg::kSplitTokens / cfg::kPageSize;
    double sum = 0, mass = 0;
    for (int b = begin; b < begin + blocks; ++b) {
      const int d = b % cfg::kItemBlocks % kSplitBlocks % cfg::kHeadDim;
      const auto [value, score] =
          said(query_of(row.query, h * cfg::kHeadDim + d), row.contents[static_cast<size_t>(b)], h);
      sum += std::exp(static_cast<double>(score)) * value, mass += std::exp(static_cast<double>(score));
    }
    return {sum / mass, std::log(mass)};
  }

  template <class Which>
  int withdrawn(Which which) {
    int found = 0;
    crew_.run([&](auto& team) {
      const int count = withdraw(team, c_, *ledger_, *scratch_, which);
      if (team.leader()) found = count;
    });
    return found;
  }

  template <class Which>
  void recall(Which which) {
    const int count = withdrawn(which);
    for (int i = 0; i < count; ++i) {
      const AwaitedWork& work = ledger_->awaited[scratch_->withdrawn[i]];
      Row& row = rows_[work.row];
      expect(row.answered[static_cast<size_t>(work.partial)] == 0, "what was answered is recalled");
      attend(row, work.partial, work.begin, work.blocks);
      --row.awaited;
    }
  }

  void finish(Row& row) {
    WorkAnswer all = {};
    int blocks = 0;
    for (size_t i = 0; i < row.partial.size(); ++i) {
      if (row.answered[i] == 0) continue;
      blocks == 0 ? void(all = row.partial[i]) : join(all, row.partial[i]);
      blocks += row.answered[i];
    }
    expect(blocks == static_cast<int>(row.blocks.size()), "blocks are attended to that are too many or too few");
    for (int h = 0; h < cfg::kHeads; ++h) {
      const auto [value, lse] = exact(row, h, 0, blocks);
      expect(std::abs(all.out[h][cfg::kHeadDim - 1] - value) < 1e-2, "an output is not that of the row's blocks");
      expect(std::abs(all.lse[h] - lse) < 1e-4, "an LSE is not that of the row's blocks");
    }
    ++tally_.layers;
    adapt();
    leave(row);
  }

  // However busy the machine, some answers are in time and some are not.
  void adapt() {
    const uint64_t given = ledger_->given - seen_given_, answered = ledger_->answered - seen_answered_;
    if (given < 50) return;
    seen_given_ = ledger_->given, seen_answered_ = ledger_->answered;
    const uint64_t patience =
        answered < given / 3 ? uint64_t{shared_.patience_us} * 5 / 4 : shared_.patience_us * 4 / 5;
    show(shared_.patience_us, static_cast<uint32_t>(std::clamp(patience, kLeastPatienceUs, kMostPatienceUs)));
  }

  void abort_row(int r) {
    Row& row = rows_[r];
    withdrawn([r](const AwaitedWork& work) { return work.row == r; });
    ++row.generation;
    ++tally_.aborted;
    leave(row);
  }

  // The row's blocks are anybody's, and not what they were.
  void leave(Row& row) {
    for (int32_t block : row.blocks) show(shared_.block[block], 0u);
    free_.insert(free_.end(), row.blocks.begin(), row.blocks.end());
    row.blocks.clear(), row.contents.clear();
    row.awaited = 0;
  }

  Shared& shared_;
  Cooperation& c_;
  Random random_;
  int workers_;
  bool processes_;
  Tally tally_ = {};
  uint64_t seen_given_ = 0, seen_answered_ = 0;
  Crew crew_;
  std::unique_ptr<WorkLedger> ledger_ = std::make_unique<WorkLedger>();
  std::unique_ptr<WorkScratch> scratch_ = std::make_unique<WorkScratch>();
  std::vector<int32_t> free_ = {};
  Row rows_[cfg::kSlowRows];
  std::map<pid_t, int> staff_ = {};
  uint32_t dead_[kMostWorkers] = {};
  std::jthread threads_[kMostWorkers] = {};
};

}  // namespace

int main(int count, char** arguments) {
  if (count != 6) return 2;
  const auto number = [&](int i) { return std::strtoull(arguments[i], nullptr, 10); };
  void* memory = mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  expect(memory != MAP_FAILED, "no memory");
  auto& shared = *new (memory) Shared();
  auto world = std::make_unique<World>(shared, number(2) << 32, static_cast<int>(number(3)), number(4) != 0,
                                       static_cast<int>(number(5)));
  const Tally t = world->play(number(1));
  const WorkLedger ledger = world->ledger();
  world.reset();
  const auto print = [](const char* name, uint64_t value, const char* end = ", ") {
    std::printf("\"%s\": %llu%s", name, static_cast<unsigned long long>(value), end);
  };
  std::printf("{");
  print("layers", t.layers), print("aborted", t.aborted), print("recalled", t.recalled), print("died", t.died);
  print("stopped", t.stopped), print("full", t.full), print("given", ledger.given), print("answered", ledger.answered);
  print("late", ledger.late), print("withdrawn", ledger.withdrawn, "}\n");
}
