// The list builder of dp_prefill: which keys of which rows make a task, which tasks a share.
#include "common/team.hpp"
#include "cuda/prefill.cuh"

namespace dp {

// What the host has to allocate: the tasks of all groups, and partial results, two a share.
extern "C" {
__constant__ int64_t dp_prefill_tasks_bytes = sizeof(PrefillTasks[cfg::kGroups]);
__constant__ int64_t dp_prefill_partials_bytes = sizeof(PrefillPartial[2 * kMaxPrefillShares]);
}

namespace {

// In tiles of keys: what a task costs beyond them (its queries, its output, a pipeline that fills), and the least that
// is worth a task.
constexpr int kTaskCost = 1;
constexpr int kLeastPiece = 3;

// Tiles of packed rows of a row of the step; none for a row of one token.
__device__ int tiles_of(const StepBuffers& step, int row) {
  const int queries = step.query_begin[row + 1] - step.query_begin[row];
  return queries > 1 ? (queries * cfg::kGqaRatio + kTileRows - 1) / kTileRows : 0;
}

// A tile of packed rows and the keys that it sees.
struct RowTile {
  int queries, history, packed;
  int begin, end;  // keys

  __device__ RowTile(const StepBuffers& step, int group, int row, int tile) {
    queries = step.query_begin[row + 1] - step.query_begin[row];
    history = step.context[row] - queries;
    packed = tile * kTileRows;
    const int last = least((packed + kTileRows - 1) / cfg::kGqaRatio, queries - 1);
    end = history + last + 1;
    begin = cfg::kWindow[group] > 0 ? most(history + packed / cfg::kGqaRatio + 1 - cfg::kWindow[group], 0) : 0;
  }
  __device__ int first_range() const { return begin / kTileKeys; }
  __device__ int ranges() const { return (end + kTileKeys - 1) / kTileKeys - first_range(); }
  __device__ int cost() const { return kTaskCost + ranges(); }
};

// The tiles of a step, once for each KV head: a pair is both. Pairs of a row and a KV head, which read the same keys,
// lie side by side, the last tiles of the row first, which see most keys. Costs of pairs lie end to end.
class Pairs {
 public:
  struct Place {
    int row, kv_head;
    int tile;  // among those of all rows
  };

  // `first_tile` has room for a word a row and one more.
  __device__ Pairs(CtaTeam& team, const StepBuffers& step, int group, PrefillTasks& tasks, int32_t* first_tile)
      : step_(step), group_(group), row_(tasks.row), start_(tasks.start), first_tile_(first_tile) {
    const int rows = static_cast<int>(step.rows);
    team.each(rows, [&](int row) { first_tile[row] = tiles_of(step, row); });
    tiles_ = team.scan(first_tile, rows);
    if (team.leader()) first_tile[rows] = tiles_;
    team.sync();
    team.each(rows, [&](int row) {
      for (int tile = first_tile[row]; tile < first_tile[row + 1]; ++tile) tasks.row[tile] = row;
    });
    team.sync();
    team.each(tiles_, [&](int tile) { tasks.start[tile] = at_tile(tile).cost(); });
    const int total = team.scan(tasks.start, tiles_);
    if (team.leader()) tasks.start[tiles_] = total;
    team.sync();
  }

  __device__ int count() const { return tiles_ * cfg::kKvHeads; }
  __device__ int total() const { return start_[tiles_] * cfg::kKvHeads; }
  __device__ Place place(int pair) const {
    const int row = row_[pair / cfg::kKvHeads], first = first_tile_[row], tiles = first_tile_[row + 1] - first;
    const int index = pair - first * cfg::kKvHeads;
    return {row, index / tiles, first + index % tiles};
  }
  __device__ RowTile at_tile(int tile) const {
    const int row = row_[tile];
    return RowTile(step_, group_, row, first_tile_[row + 1] - 1 - tile);
  }
  __device__ int cost(int pair) const {
    const int tile = place(pair).tile;
    return start_[tile + 1] - start_[tile];
  }
  // Where the costs of a pair begin; those of pair `count` would begin after all.
  __device__ int start(int pair) const {
    if (pair == count()) return total();
    const Place at = place(pair);
    const int first = start_[first_tile_[at.row]], next = start_[first_tile_[at.row + 1]];
    return first * cfg::kKvHeads + at.kv_head * (next - first) + start_[at.tile] - first;
  }
  // The pair that has this cost.
  __device__ int at(int cost) const {
    const int row = row_[last_tile(0, tiles_, cost / cfg::kKvHeads)];
    const int first = first_tile_[row], tiles = first_tile_[row + 1] - first;
    const int of_head = start_[first + tiles] - start_[first], rest = cost - start_[first] * cfg::kKvHeads;
    const int tile = last_tile(first, first + tiles, start_[first] + rest % of_head);
    return first * cfg::kKvHeads + rest / of_head * tiles + tile - first;
  }

 private:
  // The last of the tiles [low, high) that begins at or before a cost of one KV head.
  __device__ int last_tile(int low, int high, int cost) const {
    while (high - low > 1) {
      const int middle = (low + high) / 2;
      (start_[middle] <= cost ? low : high) = middle;
    }
    return low;
  }

  const StepBuffers& step_;
  int group_;
  const int32_t *row_, *start_, *first_tile_;
  int tiles_;
};

}  // namespace

// Fills the tasks of every group for `shares` CTAs. In rounds every share gets a whole tile, as long as none gets more
// than its part of all costs: so CTAs that read the same keys do so at the same time, from the L2. The tiles that are
// left are cut where each share has its part. Grid: kGroups CTAs.
extern "C" __global__ void __launch_bounds__(CtaTeam::kThreads)
    dp_prefill_tasks(const StepBuffers* step_buffers, int shares, PrefillTasks* tasks_of_group) {
  __shared__ CtaTeam::Meeting meeting;
  __shared__ int32_t first_tile[cfg::kMaxBatch + 1];
  __shared__ int32_t cut[kMaxPrefillShares + 1];  // costs at which shares begin, of those that no round has
  CtaTeam team(meeting);
  const StepBuffers& step = *step_buffers;
  PrefillTasks& tasks = tasks_of_group[blockIdx.x];
  shares = least(shares, kMaxPrefillShares);
  const Pairs pairs(team, step, blockIdx.x, tasks, first_tile);
  const int count = pairs.count(), total = pairs.total();
  const int part = (total + shares - 1) / shares;

  const auto spent = [&](int share, int rounds) {
    int cost = 0;
    for (int round = 0; round < rounds; ++round) cost += pairs.cost(prefill_pair(round, share, shares));
    return cost;
  };
  const int rounds = static_cast<int>(team.reduce(
      shares,
      [&](int share) {
        int rounds = 0, cost = 0;
        while ((rounds + 1) * shares <= count) {
          cost += pairs.cost(prefill_pair(rounds, share, shares));
          if (cost > part) break;
          ++rounds;
        }
        return static_cast<uint64_t>(rounds);
      },
      Least()));
  const int whole = rounds * shares, begun = pairs.start(whole);
  team.each(shares, [&](int share) { cut[share] = most(part - spent(share, rounds), 1); });
  team.scan(cut, shares);
  team.each(shares, [&](int share) {
    int cost = begun + cut[share];
    if (cost < total) {
      const int pair = pairs.at(cost), start = pairs.start(pair), end = start + pairs.cost(pair);
      if (cost < start + kTaskCost + kLeastPiece) {
        cost = start;
      } else if (cost > end - kLeastPiece) {
        cost = end;
      }
    }
    cut[share] = least(cost, total);
  });
  if (team.leader()) cut[shares] = total;
  team.sync();

  // The first share that begins after so many costs.
  const auto share_after = [&](int cost) {
    int low = 0, high = shares;
    while (low < high) {
      const int middle = (low + high) / 2;
      if (cut[middle] > cost) {
        high = middle;
      } else {
        low = middle + 1;
      }
    }
    return low;
  };
  const auto pieces_of = [&](int pair) {
    const int start = pairs.start(pair);
    return pair < whole ? 1 : share_after(start + pairs.cost(pair) - 1) - share_after(start) + 1;
  };
  int32_t *first = tasks.first, *slot = tasks.slot;
  team.each(count, [&](int pair) {
    first[pair] = pieces_of(pair);
    slot[pair] = first[pair] > 1 ? first[pair] : 0;
  });
  const int task_count = team.scan(first, count);
  team.scan(slot, count);
  team.each(count, [&](int pair) {
    const auto [row, kv_head, index] = pairs.place(pair);
    const RowTile tile = pairs.at_tile(index);
    const int pieces = pieces_of(pair);
    const int share = share_after(pairs.start(pair)), keys = pairs.start(pair) + kTaskCost;
    const auto key_at = [&](int cost) { return (tile.first_range() + cost - keys) * kTileKeys; };
    for (int piece = 0; piece < pieces; ++piece) {
      tasks.task[first[pair] + piece] = {
          .row_slot = step.row_slot[row],
          .token = step.query_begin[row],
          .queries = tile.queries,
          .history = tile.history,
          .kv_head = kv_head,
          .packed = tile.packed,
          .begin = piece == 0 ? tile.begin : key_at(cut[share + piece - 1]),
          .end = piece == pieces - 1 ? tile.end : key_at(cut[share + piece]),
          .pair = pair,
          .pieces = pieces,
          .piece = piece,
          .slot = slot[pair],
      };
    }
  });
  team.each(shares + 1, [&](int share) {
    const int cost = cut[share], pair = cost < total ? pairs.at(cost) : count;
    tasks.share[share] = cost == total ? task_count : first[pair] + share_after(cost) - share_after(pairs.start(pair));
  });
  team.each(count * kRowWarps, [&](int i) { tasks.arrived[i / kRowWarps][i % kRowWarps] = 0; });
  if (team.leader()) {
    tasks.shares = count > 0 ? shares : 0;
    tasks.rounds = rounds;
    tasks.count = task_count;
  }
}

}  // namespace dp
