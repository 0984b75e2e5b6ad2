// What the scheduler remembers between steps: structures of arrays, of a size fixed by the plan, no pointers.
//
// A request has a request slot from acceptance to its last record, and while it runs a row slot with block tables. The
// tables themselves are in StepBuffers.
#pragma once
#include <cstdint>
#include <type_traits>

#include "common/layout.hpp"
#include "common/pool.hpp"
#include "common/portable.hpp"
#include "common/recall.hpp"
#include "common/sampler.hpp"
#include "common/team.hpp"

namespace dp {

constexpr int kHeadStart = 16;  // requests of its ring that one of the next higher priority may overtake
constexpr int kHistoryPagesEach = (cfg::kMaxContext + cfg::kHistoryPage - 1) / cfg::kHistoryPage;
constexpr int kKeysEach = cfg::kHistoryPage / cfg::kPageSize;
static_assert(cfg::kHistoryPage % cfg::kPageSize == 0, "a page's tokens lie in one history page, and so does its key");

// Free: no request. Queued: waits for a row. Running: has one. Ended: waits for room to say so.
enum class Phase : uint8_t { kFree, kQueued, kRunning, kEnded };

// Lanes that have rows. Each steps at its own pace: while a step of one is under way, steps of another end and are laid
// out. So schedule() changes the rows of its own lane alone, and marks what it wants of the other's.
constexpr int kLaneCount = cfg::kSlowRows > 0 ? 2 : 1;
constexpr int kSlowLane = kLaneCount - 1;  // where there is one
static_assert(cfg::kSlowRows < cfg::kMaxBatch, "rows that are not slow are fast");
DP_FN constexpr int lane_rows(int lane) {
  return lane == static_cast<int>(Lane::kSlow) ? cfg::kSlowRows : cfg::kMaxBatch - cfg::kSlowRows;
}

// Why a row is given up. Done: its last record is out. Report: the request ended, a record has to say so. Requeue: it
// goes back to the queue and is computed again.
enum class Leave : uint8_t { kStay, kDone, kReport, kRequeue };

// First and last request of a chain through Requests::next and ::previous.
struct Chain {
  int32_t head, tail;
};

struct Requests {
  static constexpr int N = cfg::kMaxRequests;
  FreeList<N> free;
  Phase phase[N];
  Lane lane[N];
  int64_t turn[N];  // in its ring's queue, the least first
  Finish finish[N];
  uint8_t ring[N];
  uint32_t epoch[N];
  uint32_t index[N];  // of the submit record
  uint64_t tag[N];
  int32_t row[N];  // kNone unless running
  int32_t next[N], previous[N];
  // Tokens: of the prompt, of the history, of it with KV, and how long the history may and has to become.
  int32_t prompt[N], length[N], computed[N], cached[N], longest[N], shortest[N];
  int32_t left_out[N];  // tokens generated while blocks were left out of attention
  // Positions before it were computed once, and what they say of the prompt is said: the longest context where nobody
  // asked for logprobs of a prompt.
  int32_t scored[N];
  Sampling sampling[N];
  int32_t stop_count[N];
  int32_t stop[N][kMaxStopTokens];
  int32_t bias_count[N];
  int32_t bias_id[N][kMaxBias];
  float bias[N][kMaxBias];
  bool sparse[N];  // its tokens may attend to chosen blocks, if its row is slow
  bool fresh[N];   // has never had a row, so it holds history pages for its prompt alone
  int32_t history_count[N];
  int32_t history[N][kHistoryPagesEach];
  int32_t keyed[N];   // leading pages whose prefix keys the history has
  Finish leaving[N];  // to be ended in this step, with this reason
};

struct Rows {
  static constexpr int N = cfg::kMaxBatch;
  FreeList<N> free;
  int32_t request[N];
  // Pages held: those of the table from `first` to before `end`, by position / kPageSize.
  int32_t first[cfg::kGroups][N], end[cfg::kGroups][N];
  int32_t page[cfg::kGroups][N];  // taken last
  int32_t token[N];               // the last of its history
  int32_t indexed[N];             // leading pages that are in the prefix index; the others are the row's alone
  Leave leave[N];
  bool paused[N];  // no room for its next record in its ring
  int32_t running_count;
  int32_t running[N];  // row slots in order of admission
};

// Of a resident page, all blocks of which share one state. The generation tells a page from its earlier lives.
template <int N>
struct PageStates {
  Residency residency[N];
  uint32_t generation[N];
  int32_t holders[N];  // rows whose tables have it
  int32_t prefix[N];   // its entry of the prefix index; kNone: none
  bool recent[N];      // found again since the clock's hand was here
};

constexpr int largest_pool() {
  int pages = 0;
  for (int g = 0; g < cfg::kGroups; ++g) pages = most(pages, cfg::kPages[g]);
  return pages;
}

// A page is free, held by rows, or idle: in the prefix index and held by none. Idle pages are as good as free ones.
struct Pages {
  static constexpr int N = largest_pool();
  FreeList<N> free[cfg::kGroups];
  PageStates<N> state[cfg::kGroups];
  int32_t idle[cfg::kGroups];
  int32_t hand[cfg::kGroups];  // of the clock
};

// The group that sees furthest back: a row that holds a page of any group holds this group's of the same tokens.
constexpr int widest_group() {
  int widest = 0;
  for (int g = 1; g < cfg::kGroups; ++g) {
    const bool wider = cfg::kWindow[widest] != 0 && (cfg::kWindow[g] == 0 || cfg::kWindow[g] > cfg::kWindow[widest]);
    widest = wider ? g : widest;
  }
  return widest;
}
constexpr int kAnchor = widest_group();

// Sealed pages by the tokens up to their end. An entry has the number of its page in the anchor group and lives as long
// as that page keeps its contents; pages of other groups join it and leave it.
struct Prefixes {
  static constexpr int N = cfg::kPages[kAnchor];
  static constexpr int kBuckets = power_of_two(N);
  int32_t bucket[kBuckets];
  uint64_t key[N];
  int32_t next[N];  // of the same bucket
  int32_t parent[N];
  uint32_t parent_generation[N];
  int32_t page[cfg::kGroups][N];
  int32_t token[N][cfg::kPageSize];
};

struct History {
  FreeList<cfg::kHistoryPages> free;
  int32_t token[cfg::kHistoryPages][cfg::kHistoryPage];
  uint64_t key[cfg::kHistoryPages][kKeysEach];
};

// The engine's side of a ring. Indices count records, modulo 2^32.
struct RingState {
  uint32_t epoch, submit_read, abort_read, token_read, token_written;
  uint32_t announced;             // token records whose flags are stored
  uint32_t room;                  // free token records, as of this step
  uint32_t submits, aborts;       // visible records, as of this step
  bool turned;                    // its epoch is new in this step
  bool blocked;                   // its next request has to wait for others to end
  uint32_t rows[kLaneCount];      // running requests
  uint32_t promised[kLaneCount];  // of these, those that do not pause: their next records have room
  uint32_t scores[kLaneCount];    // records of a lane's step beyond one a row
  bool marked[kLaneCount];        // running requests of other lanes' may be marked to end
  int32_t requests;               // all that have a request slot
  int32_t prompts, lives;         // history pages of requests that never had a row, and of the others
  int32_t queued;                 // waiting requests
  int64_t arrivals;               // accepted requests
  int64_t queued_tokens;
  Chain queue[kLaneCount], ended;
};

// A request as it was read, once, from memory that others may write.
struct Incoming {
  RequestParams params;
  uint32_t bias_begin, prompt_begin;  // words of the arena
  int32_t request;                    // kNone: it has to wait
  bool refused;                       // it ends as it arrives
};

// Pages that the clock looks at together.
constexpr int kSweep = 256;

// What is counted of the rows and samples of a step: pages that were sealed, samples that ended their requests and that
// gave no token, and records for each of the rings that are looked at together.
constexpr int kSealedPages = 0, kEndedSamples = 1, kMuteSamples = 2, kRecordsOfRing = 3;
constexpr int kRingsTogether = least(cfg::kRings, 4);
using RetireCounts = Counts<kRecordsOfRing + kRingsTogether>;
constexpr int kMostSealed = cfg::kMaxStepTokens / cfg::kPageSize + cfg::kMaxBatch;  // pages in a step

// What is counted of the rows that the next step may have: those that decode, tokens that the others would take, and by
// layer group the pages that decode rows begin.
constexpr int kDecodeRows = 0, kPrefillTokens = 1, kBegunPages = 2;
using ChosenCounts = Counts<kBegunPages + cfg::kGroups>;
static_assert(sizeof(ChosenCounts) <= sizeof(Counts<kMostCounts>), "one scan counts the pages of all groups");

// How the pages that a row sealed in a step go into the prefix index: not at all, because one before them did not; at
// once; or by the leader, because their buckets or keys are others' too.
enum Indexing : int32_t { kKeptApart, kUncontested, kContested };

// Lists of a phase, by position in Rows::running or in a list of another kind as said there.
struct Work {
  int32_t a[cfg::kMaxBatch], b[cfg::kMaxBatch], c[cfg::kMaxBatch];
  RetireCounts retired[cfg::kMaxSamples];  // by batch row and by sample
  bool said[cfg::kMaxSamples];             // whether a sample has a record
  ChosenCounts chosen[cfg::kMaxBatch];
  Counts<2> prefilled[cfg::kMaxBatch];
  // Pages that a step sealed, by their order: row slot, number, bucket of the prefix index, and key if it is new, else
  // 0.
  int32_t sealed_slot[kMostSealed], sealed_page[kMostSealed], sealed_bucket[kMostSealed];
  uint64_t sealed_key[kMostSealed];
  int32_t indexing[cfg::kMaxBatch];  // an Indexing by row slot
  int32_t contests;
  // Words of the rings as they were when they were looked at.
  uint32_t epoch[cfg::kRings], token_read[cfg::kRings];
  uint64_t submit_flag[cfg::kRings], abort_flag[cfg::kRings];
  int32_t chunk[cfg::kMaxBatch], start[cfg::kMaxBatch], row[cfg::kMaxBatch], sample[cfg::kMaxBatch];
  int32_t score[cfg::kMaxBatch];
  int32_t left[cfg::kMaxBatch], kept[cfg::kMaxBatch];
  int32_t request[cfg::kMaxRequests], offset[cfg::kMaxRequests];
  int32_t sweep[kSweep], victim[kSweep];
};

// Of a prefix that is looked for, by page: its entry, pages of a group before it, and whether a prefix of one page more
// can be reused.
struct Matches {
  int32_t entry[cfg::kPagesPerRow], before[cfg::kPagesPerRow + 1];
  bool usable[cfg::kPagesPerRow];
};

// What every step reads and writes here and there, for which a CTA takes it to its shared memory.
struct alignas(16) Desk {
  uint64_t heartbeat, step;
  int32_t vocabulary;  // ids from it on are padding
  int32_t ring_turn;   // ring to be served first
  int32_t short_lane;  // whose next request waits for pages, so that no other lane's overtakes it; kNone: none
  Counters counters;
  Rows rows;
  RingState rings[cfg::kRings];
};

struct NoRecall {};

// All that lasts from step to step, and room for what does not.
struct StateMemory {
  Desk desk;
  Requests requests;
  Pages pages;
  Prefixes prefixes;
  History history;
  Finish cancelled[cfg::kRings][cfg::kRequestSlots];  // by submit record: ended before it was accepted
  Incoming incoming;
  Matches matches;
  Work work;
  [[no_unique_address]] std::conditional_t<kOffload, RecallMemory, NoRecall> recall;
};

template <class Memory>
DP_FN constexpr RecallMemory* recall_of([[maybe_unused]] Memory& m) {
  if constexpr (kOffload) {
    return &m.recall;
  } else {
    return nullptr;
  }
}

// Where everything is. A handle, which rarely called functions take by value: what is known of it stays known.
struct State {
  DP_FN State(StateMemory& m, Desk& desk, Work& lists)
      : heartbeat(desk.heartbeat),
        step(desk.step),
        vocabulary(desk.vocabulary),
        ring_turn(desk.ring_turn),
        short_lane(desk.short_lane),
        counters(desk.counters),
        rows(desk.rows),
        rings(desk.rings),
        requests(m.requests),
        pages(m.pages),
        prefixes(m.prefixes),
        history(m.history),
        cancelled(m.cancelled),
        incoming(m.incoming),
        matches(m.matches),
        work(lists),
        recall(recall_of(m)) {}
  DP_FN explicit State(StateMemory& m) : State(m, m.desk, m.work) {}

  uint64_t &heartbeat, &step;
  int32_t &vocabulary, &ring_turn, &short_lane;
  Counters& counters;
  Rows& rows;
  RingState (&rings)[cfg::kRings];
  Requests& requests;
  Pages& pages;
  Prefixes& prefixes;
  History& history;
  Finish (&cancelled)[cfg::kRings][cfg::kRequestSlots];
  Incoming& incoming;
  Matches& matches;
  Work& work;
  RecallMemory* recall;  // null without offload
};

DP_FN inline int lane_of(const StepBuffers& b) { return kLaneCount == 1 ? 0 : static_cast<int>(b.lane); }

DP_FN inline int lane_of_request(const State& s, int32_t q) {
  return kLaneCount == 1 ? 0 : static_cast<int>(s.requests.lane[q]);
}

DP_FN constexpr bool is_slow(int lane) { return kOffload && lane == kSlowLane; }

// Of a row that runs: whether it has slots, and no pages of this group.
DP_FN constexpr bool has_slots(int group, int32_t slot) { return kOffload && group == kFull && slot < kSlowRows; }

DP_FN inline int lane_of_row(const State& s, int32_t slot) { return lane_of_request(s, s.rows.request[slot]); }

DP_FN inline int32_t& history_token(const State& s, int32_t request, int32_t position) {
  const int32_t page = s.requests.history[request][position / cfg::kHistoryPage];
  return s.history.token[page][position % cfg::kHistoryPage];
}

// The key of the prefix that ends with so-manieth page of a request's tokens.
DP_FN inline uint64_t& history_key(const State& s, int32_t request, int32_t page) {
  return s.history.key[s.requests.history[request][page / kKeysEach]][page % kKeysEach];
}

}  // namespace dp
