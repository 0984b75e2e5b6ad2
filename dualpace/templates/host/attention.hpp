// Attention over paged KV, for decode rows and for chunks of prompts: causal, and within the group's window.
//
// A work item is a task and one KV head: the query heads that share it read each key and value once. A decode row is
// cut into splits of cfg::kSplitTokens keys, whose bounds depend on nothing but its context, so that its result does
// not depend on the batch; a chunk is cut into tiles of queries that share each block of keys, converted to fp32 once.
#pragma once
#include "common/layout.hpp"
#include "common/recall.hpp"
#ifdef __AMX_BF16__
#include "host/attention_amx.hpp"
#endif
#include "host/block.hpp"
#include "host/simd.hpp"
#include "host/workspace.hpp"

namespace dp::DP_ISA {

constexpr int kRatio = cfg::kGqaRatio;
// Query rows are (token, query head of the KV head). A tile's rows, and keys of one softmax update: L2 holds them all.
constexpr int kTileTokens = kRatio < 32 ? 32 / kRatio : 1;
constexpr int kTileRows = kTileTokens * kRatio;
constexpr int kKeys = cfg::kHeadDim > 128 ? 32 : 64;
// What the registers hold: rows by keys of scores, rows by vectors of output.
constexpr int kQuadRows = 4;
constexpr int kQuadKeys = kLanes / kQuadRows;
constexpr int kQuadVecs = kLanes / kQuadRows;
// Times that a decoding row's queries pass over the keys. Each pass fetches its share of what comes next.
constexpr int kPasses = (kRatio + kQuadRows - 1) / kQuadRows;
constexpr float kMasked = -__builtin_inff();
// Below every score, and finite: a row that has seen no key yet must not compute infinity minus infinity.
constexpr float kNoPeak = -1e30F;

struct alignas(64) Tile {
  float query[kTileRows][cfg::kHeadDim];
  float out[kTileRows][cfg::kHeadDim];
  float score[kTileRows][kKeys];
  float peak[kTileRows];
  float mass[kTileRows];
  float rescale[kTileRows];
};

// The keys and values of one softmax update; the last one is repeated.
template <class T>
struct Keys {
  const T* key[kKeys];
  const T* value[kKeys];
  int count;
};

// Begins to fetch the line of a row that begins at d, if one does.
template <class T>
inline void prefetch_line(const T* row, int d) {
  constexpr int kLine = 64 / sizeof(T);
  if (d % kLine == 0) _mm_prefetch(reinterpret_cast<const char*>(row + d), _MM_HINT_T1);
}

// f(constant, r) for quads of rows from r, then for what is left.
template <class F>
inline void each_quad(int rows, F f) {
  int r = 0;
  for (; r + kQuadRows <= rows; r += kQuadRows) f(std::integral_constant<int, kQuadRows>(), r);
  if (rows - r == 3) f(std::integral_constant<int, 3>(), r);
  if (rows - r == 2) f(std::integral_constant<int, 2>(), r);
  if (rows - r == 1) f(std::integral_constant<int, 1>(), r);
}

// Meanwhile the first keys of `ahead` are fetched, unless it is null; so below.
template <int kRows, class T>
inline void score_quad(Tile& tile, int r, const T* const* key, const T* const* ahead, int j) {
  Vec acc[kRows * kQuadKeys];
#pragma GCC unroll 16
  for (int i = 0; i < kRows * kQuadKeys; ++i) acc[i] = Vec{};
  for (int d = 0; d < cfg::kHeadDim; d += kLanes) {
    Vec keys[kQuadKeys];
#pragma GCC unroll 4
    for (int n = 0; n < kQuadKeys; ++n) {
      keys[n] = load(key[n] + d);
      if (ahead != nullptr) prefetch_line(ahead[n], d);
    }
#pragma GCC unroll 4
    for (int m = 0; m < kRows; ++m) {
      const Vec query = load(&tile.query[r + m][d]);
#pragma GCC unroll 4
      for (int n = 0; n < kQuadKeys; ++n) acc[m * kQuadKeys + n] += query * keys[n];
    }
  }
  float total[kLanes];
  store(total, sums<kRows * kQuadKeys>(acc));
  for (int m = 0; m < kRows; ++m) {
    __builtin_memcpy(&tile.score[r + m][j], total + m * kQuadKeys, kQuadKeys * sizeof(float));
  }
}

template <int kRows, int kVecs, class T>
inline void value_quad(Tile& tile, int r, const Keys<T>& keys, const T* const* ahead, int d) {
  Vec acc[kRows * kVecs];
#pragma GCC unroll 4
  for (int m = 0; m < kRows; ++m) {
#pragma GCC unroll 4
    for (int n = 0; n < kVecs; ++n) acc[m * kVecs + n] = load(&tile.out[r + m][d + n * kLanes]) * tile.rescale[r + m];
  }
  for (int j = 0; j < keys.count; ++j) {
    Vec values[kVecs];
#pragma GCC unroll 4
    for (int n = 0; n < kVecs; ++n) {
      values[n] = load(keys.value[j] + d + n * kLanes);
      if (ahead != nullptr && j % kPasses == r / kQuadRows) prefetch_line(ahead[j], d + n * kLanes);
    }
#pragma GCC unroll 4
    for (int m = 0; m < kRows; ++m) {
      const float weight = tile.score[r + m][j];
#pragma GCC unroll 4
      for (int n = 0; n < kVecs; ++n) acc[m * kVecs + n] += values[n] * weight;
    }
  }
#pragma GCC unroll 4
  for (int m = 0; m < kRows; ++m) {
#pragma GCC unroll 4
    for (int n = 0; n < kVecs; ++n) store(&tile.out[r + m][d + n * kLanes], acc[m * kVecs + n]);
  }
}

// Scores of row r to weights, of keys [low, high) only.
inline void soften(Tile& tile, int r, int low, int high, int count) {
  float* score = tile.score[r];
  const int padded = (count + kLanes - 1) / kLanes * kLanes;
  if constexpr (cfg::kAttentionSoftcap > 0) {
    constexpr float kCap = cfg::kAttentionSoftcap;
    for (int j = 0; j < padded; j += kLanes) store(score + j, kCap * tanh(load(score + j) / kCap));
  }
  for (int j = 0; j < low && j < padded; ++j) score[j] = kMasked;
  for (int j = high > 0 ? high : 0; j < padded; ++j) score[j] = kMasked;
  Vec highest = broadcast(tile.peak[r]);
  for (int j = 0; j < padded; j += kLanes) highest = max(highest, load(score + j));
  const float peak = max_lane(highest);
  Vec mass{};
  for (int j = 0; j < padded; j += kLanes) {
    const Vec weight = exp(load(score + j) - peak);
    mass += weight;
    store(score + j, weight);
  }
  tile.rescale[r] = exp(broadcast(tile.peak[r] - peak))[0];
  tile.mass[r] = tile.mass[r] * tile.rescale[r] + sum(mass);
  tile.peak[r] = peak;
}

// One softmax update: keys at positions from `base`, rows of queries at positions from `position`. Unless `next` is
// null they come from memory, and are fetched before they are multiplied: values while keys are scored, then the next
// keys.
template <class T>
inline void update(Tile& tile, int rows, const Keys<T>& keys, const Keys<T>* next, int base, int position, int window) {
  each_quad(rows, [&](auto size, int r) {
    for (int j = 0; j < keys.count; j += kQuadKeys) {
      const bool fetches = next != nullptr && j / kQuadKeys % kPasses == r / kQuadRows;
      score_quad<size>(tile, r, keys.key + j, fetches ? keys.value + j : nullptr, j);
    }
  });
  for (int r = 0; r < rows; ++r) {
    const int past = position + r / kRatio + 1 - base;
    soften(tile, r, window > 0 ? past - window : 0, past < keys.count ? past : keys.count, keys.count);
  }
  each_quad(rows, [&](auto size, int r) {
    const T* const* ahead = next != nullptr ? next->key : nullptr;
    int d = 0;
    for (; d + kQuadVecs * kLanes <= cfg::kHeadDim; d += kQuadVecs * kLanes)
      value_quad<size, kQuadVecs>(tile, r, keys, ahead, d);
    for (; d < cfg::kHeadDim; d += kLanes) value_quad<size, 1>(tile, r, keys, ahead, d);
  });
}

// Addresses of `count` keys and values from position `base`.
inline void locate(Keys<Element>& keys, const Element* pool, const int32_t* table, int kv_head, int base, int count) {
  for (int j = 0; j < count; ++j) {
    const int position = base + j;
    const Element* block = pool + table[position / cfg::kPageSize] * kBlockElements;
    keys.key[j] = block + head_offset(kv_head, position % cfg::kPageSize);
    keys.value[j] = keys.key[j] + kValueOffset;
  }
  for (int j = count; j < kKeys; ++j) {
    keys.key[j] = keys.key[count - 1];
    keys.value[j] = keys.value[count - 1];
  }
  keys.count = count;
}

struct Converted {
  alignas(64) float key[kKeys][cfg::kHeadDim];
  alignas(64) float value[kKeys][cfg::kHeadDim];
};

inline void convert(Converted& to, Keys<float>& keys, const Keys<Element>& from) {
  for (int j = 0; j < (from.count + kQuadKeys - 1) / kQuadKeys * kQuadKeys; ++j) {
    for (int d = 0; d < cfg::kHeadDim; d += kLanes) store(&to.key[j][d], load(from.key[j] + d));
    keys.key[j] = to.key[j];
  }
  for (int j = 0; j < from.count; ++j) {
    for (int d = 0; d < cfg::kHeadDim; d += kLanes) store(&to.value[j][d], load(from.value[j] + d));
    keys.value[j] = to.value[j];
  }
  keys.count = from.count;
}

// A work item; none if it has no task. `query`, `out` and `lse` are those of the KV head's first query head and of the
// task's first token: outputs of tokens follow each other, queries are kQkvSize apart. `lse` is null if nobody asks.
struct Item {
  const Task* task = nullptr;
  int kv_head = 0;
  const int32_t* table = nullptr;
  const float* query = nullptr;
  float* out = nullptr;
  float* lse = nullptr;
};

// A tile that has seen no key.
inline void open(Tile& tile, const Item& item) {
  const int rows = item.task->tokens * kRatio;
  for (int r = 0; r < rows; ++r) {
    const float* query = item.query + r / kRatio * kQkvSize + r % kRatio * cfg::kHeadDim;
    for (int d = 0; d < cfg::kHeadDim; d += kLanes) {
      store(&tile.query[r][d], load(query + d) * cfg::kAttentionScale);
      store(&tile.out[r][d], Vec{});
    }
    tile.peak[r] = kNoPeak;
    tile.mass[r] = 0.0F;
  }
}

// The tile sees the keys from `begin` to before `end`. `after` is the thread's next item, if this is the last of it.
inline void see(Tile& tile, const Item& item, int begin, int end, const Item& after, int window, const Element* pool) {
  const Task& task = *item.task;
  const int rows = task.tokens * kRatio;
  const auto find = [pool](Keys<Element>& keys, const Item& of, int base, int to) {
    locate(keys, pool, of.table, of.kv_head, base, to - base < kKeys ? to - base : kKeys);
  };
  Keys<Element> found[2];
  int turn = 0;
  if (begin < end) find(found[0], item, begin, end);
  for (int base = begin; base < end; base += kKeys, turn = 1 - turn) {
    const Keys<Element>& keys = found[turn];
    Keys<Element>& next = found[1 - turn];
    if (base + kKeys < end) {
      find(next, item, base + kKeys, end);
    } else if (after.task != nullptr) {
      find(next, after, after.task->begin, after.task->end);
    } else {
      next = keys;
    }
    if (task.tokens == 1) {
      update(tile, rows, keys, &next, base, task.position, window);
    } else {
      Converted converted;
      Keys<float> floats;
      convert(converted, floats, keys);
      update(tile, rows, floats, static_cast<const Keys<float>*>(nullptr), base, task.position, window);
    }
  }
}

inline void close(const Tile& tile, const Item& item) {
  const int rows = item.task->tokens * kRatio;
  for (int r = 0; r < rows; ++r) {
    float* to = item.out + (r / kRatio * cfg::kHeads + r % kRatio) * cfg::kHeadDim;
    for (int d = 0; d < cfg::kHeadDim; d += kLanes) store(to + d, load(&tile.out[r][d]) / tile.mass[r]);
    if (item.lse != nullptr) item.lse[r] = tile.peak[r] + __builtin_logf(tile.mass[r]);
  }
}

inline void run(const Item& item, const Item& after, int window, const Element* pool) {
  Tile tile;
  open(tile, item);
  see(tile, item, item.task->begin, item.task->end, after, window, pool);
  close(tile, item);
}

inline void merge(const float (*out)[cfg::kHeads][cfg::kHeadDim], const float (*lse)[cfg::kHeads], int splits, int head,
                  float* to) {
  float peak = lse[0][head];
  for (int s = 1; s < splits; ++s) peak = lse[s][head] > peak ? lse[s][head] : peak;
  Vec merged[cfg::kHeadDim / kLanes] = {};
  float mass = 0.0F;
  for (int s = 0; s < splits; ++s) {
    const float weight = exp(broadcast(lse[s][head] - peak))[0];
    mass += weight;
    for (int d = 0; d < cfg::kHeadDim / kLanes; ++d) merged[d] += load(&out[s][head][d * kLanes]) * weight;
  }
  for (int d = 0; d < cfg::kHeadDim / kLanes; ++d) store(to + d * kLanes, merged[d] / mass);
}

// What a thread attends to splits of decoding rows with, where that is not run().
template <class T>
struct Splits {
  void expect(const Item&, const T*) {}
  bool attend(const Item&) { return false; }
};

#ifdef __AMX_BF16__
template <>
struct Splits<std::conditional_t<(cfg::kHeadDim >= kTilePairs && kRatio > 1), Bf16, void>> {
  SplitTiles tiles;
  SplitKeys keys[2];
  int turn = 0;

  Splits() { configure_tiles(); }
  ~Splits() { release_tiles(); }

  // The last token of a prompt's chunk may be a task of its own, with all keys before it.
  static bool takes(const Task& task) { return task.tokens == 1 && task.end - task.begin <= cfg::kSplitTokens; }

  // Says which item comes after the one that attend() is asked for next.
  void expect(const Item& item, const Bf16* pool) {
    turn = 1 - turn;
    SplitKeys& to = keys[turn];
    to.count = 0;
    if (item.task == nullptr || !takes(*item.task)) return;
    for (int position = item.task->begin; position < item.task->end;) {
      const int offset = position % cfg::kPageSize;
      const Bf16* key =
          pool + item.table[position / cfg::kPageSize] * kBlockElements + head_offset(item.kv_head, offset);
      const int end =
          position - offset + cfg::kPageSize < item.task->end ? position - offset + cfg::kPageSize : item.task->end;
      for (; position < end; ++position, key += cfg::kHeadDim) to.key[to.count++] = key;
    }
    for (int j = to.count; j % kGroupKeys != 0; ++j) to.key[j] = to.key[to.count - 1];
  }

  // False for what it does not take.
  bool attend(const Item& item) {
    if (!takes(*item.task)) return false;
    float unasked[kRatio];
    attend_split(tiles, keys[1 - turn], keys[turn], item.query, item.out, item.lse == nullptr ? unasked : item.lse);
    return true;
  }
};
#endif

// What one thread does: take() is its next item.
template <class Take>
inline void attend_each(Take take, int window, const Element* pool) {
  Splits<Element> splits;
  Item item = take();
  splits.expect(item, pool);
  while (item.task != nullptr) {
    const Item after = take();
    splits.expect(after, pool);
    if (!splits.attend(item)) run(item, after, window, pool);
    item = after;
  }
}

// A token's attention to `blocks` blocks of a pool, full of keys that it sees all of: out [kHeads][kHeadDim], lse
// [kHeads]. The calling thread does it alone.
inline void attend_blocks(const float* query, const Element* pool, const int32_t* block, int blocks, float* out,
                          float* lse) {
  const int tokens = blocks * cfg::kPageSize;
  const Task task = {0, 0, 1, tokens - 1, 0, tokens, 0, 1};
  int kv_head = 0;
  const auto take = [&] {
    if (kv_head == cfg::kKvHeads) return Item{};
    const int head = kRatio * kv_head, first = head * cfg::kHeadDim;
    return Item{&task, kv_head++, block, query + first, out + first, lse + head};
  };
  attend_each(take, 0, pool);
}

// Lists a row's tasks for a group with `window`, of `context` keys; returns how many.
inline int list_row(const StepBuffers& step, int row, int context, int window, Task* tasks) {
  int count = 0;
  const int first = step.query_begin[row];
  const int queries = step.query_begin[row + 1] - first;
  const auto visible_from = [&](int position) { return window > 0 && position >= window ? position - window + 1 : 0; };
  if (queries == 1) {
    const int begin = visible_from(context - 1);
    const int splits = (context - begin + cfg::kSplitTokens - 1) / cfg::kSplitTokens;
    for (int s = 0; s < splits; ++s) {
      const int from = begin + s * cfg::kSplitTokens;
      const int to = from + cfg::kSplitTokens < context ? from + cfg::kSplitTokens : context;
      tasks[count++] = {row, first, 1, context - 1, from, to, s, splits};
    }
    return count;
  }
  for (int q = 0; q < queries; q += kTileTokens) {
    const int tokens = queries - q < kTileTokens ? queries - q : kTileTokens;
    const int position = context - queries + q;
    tasks[count++] = {row, first + q, tokens, position, visible_from(position), position + tokens, 0, 1};
  }
  return count;
}

// What the tasks come to, for the step's counters.
inline AttentionWork work_of(const Task* tasks, int count) {
  AttentionWork work = {static_cast<uint32_t>(Route::kHost), cfg::kSplitTokens, static_cast<uint32_t>(count), 0, 0, 0};
  for (int i = 0; i < count; ++i) {
    work.bytes += uint64_t{2 * cfg::kKvHeads * cfg::kHeadDim * cfg::kElementBytes} *
                  static_cast<uint64_t>(tasks[i].end - tasks[i].begin);
    if (tasks[i].splits > 1) work.merge_bytes += 2 * sizeof(float) * cfg::kHeads * (cfg::kHeadDim + 1);
  }
  return work;
}

// A task of a KV head, whose keys are in the pages of `table`.
inline Item item_of(const Task& task, int kv_head, const int32_t* table, const float* qkv, Partials& partials,
                    float* out) {
  const int head = kv_head * kRatio;
  const float* query = qkv + static_cast<int64_t>(task.first_token) * kQkvSize + head * cfg::kHeadDim;
  if (task.splits > 1) {
    float* lse = &partials.lse[task.row][task.split][head];
    return {&task, kv_head, table, query, partials.out[task.row][task.split][head], lse};
  }
  float* to = out + (static_cast<int64_t>(task.first_token) * cfg::kHeads + head) * cfg::kHeadDim;
  return {&task, kv_head, table, query, to};
}

// Does the tasks, whose rows' pages are in table_of(row), and then merges the splits of those of `merged`.
template <class TableOf>
inline void attend(const Task* tasks, int count, const Task* merged, int merged_count, TableOf table_of, int window,
                   const float* qkv, const Element* pool, Partials& partials, float* out) {
  int left = count * cfg::kKvHeads;
#pragma omp parallel
  {
    // Last tasks of a chunk have the most keys: they come first. Heads come in the order in which a block has them.
    const auto take = [&] {
      int i;
#pragma omp atomic capture
      i = --left;
      if (i < 0) return Item{};
      const Task& task = tasks[i / cfg::kKvHeads];
      return item_of(task, cfg::kKvHeads - 1 - i % cfg::kKvHeads, table_of(task.row), qkv, partials, out);
    };
    attend_each(take, window, pool);
#pragma omp barrier
    if (merged_count > 0) {
#pragma omp for schedule(static)
      for (int i = 0; i < merged_count * cfg::kHeads; ++i) {
        const Task& task = merged[i / cfg::kHeads];
        if (task.splits > 1 && task.split == 0) {
          const int head = i % cfg::kHeads;
          float* to = out + (static_cast<int64_t>(task.first_token) * cfg::kHeads + head) * cfg::kHeadDim;
          merge(partials.out[task.row], partials.lse[task.row], task.splits, head, to);
        }
      }
    }
  }
}

inline void attention(StepBuffers& step, int group, const float* qkv, const Element* pool, Workspace& workspace,
                      float* out) {
  const int window = cfg::kWindow[group];
  const Task* tasks = workspace.tasks;
  int count = 0;
  for (int row = 0; row < static_cast<int>(step.rows); ++row) {
    count += list_row(step, row, step.context[row], window, workspace.tasks + count);
  }
  step.attention[group] = work_of(tasks, count);
  bool split = false;
  for (int i = 0; i < count; ++i) split |= tasks[i].splits > 1;
  const auto table_of = [&](int row) { return step.table[group][step.row_slot[row]]; };
  attend(tasks, count, tasks, split ? count : 0, table_of, window, qkv, pool, workspace.partials, out);
}

// Tiles that chunks of all rows of a step of the slow lane leave between two passes.
constexpr int kCarriedTokens = least(cfg::kMaxStepTokens, kSlowRows* kPinnedSlots* cfg::kPageSize);
constexpr int kCarriedTiles = (kCarriedTokens / kTileTokens + kSlowRows + 1) * cfg::kKvHeads;

// A pass over the keys from `begin` to before `end` of a row that has `context` of them, in the pages of `table`:
// splits of a decoding row, which lie within one pass each, or tiles of a chunk, which `carried` [kCarriedTiles] keeps.
// The last pass has the output.
inline void attention_pass(StepBuffers& step, int row, const int32_t* table, int context, int begin, int end,
                           const float* qkv, const Element* pool, Workspace& workspace, Tile* carried, float* out) {
  const Task* tasks = workspace.tasks;
  Partials& partials = workspace.partials;
  const int count = list_row(step, row, context, 0, workspace.tasks);
  const bool last = end >= context, decodes = step.query_begin[row + 1] - step.query_begin[row] == 1;
  if (last) {
    const AttentionWork work = work_of(tasks, count);
    step.attention[kFull].bytes += work.bytes;
    step.attention[kFull].merge_bytes += work.merge_bytes;
    step.attention[kFull].items += work.items;
  }
  if (decodes) {
    const int from = begin / cfg::kSplitTokens, to = last ? count : end / cfg::kSplitTokens;
    const int merged = last && count > 1 ? count : 0;
    return attend(tasks + from, to - from, tasks, merged, [&](int) { return table; }, 0, qkv, pool, partials, out);
  }
  Tile* tiles = carried + (step.query_begin[row] / kTileTokens + row) * cfg::kKvHeads;
#pragma omp parallel for schedule(dynamic, 1)
  for (int i = count * cfg::kKvHeads - 1; i >= 0; --i) {
    const Task& task = tasks[i / cfg::kKvHeads];
    const Item item = item_of(task, i % cfg::kKvHeads, table, qkv, partials, out);
    if (begin == 0) open(tiles[i], item);
    see(tiles[i], item, begin, least(end, task.end), Item{}, 0, pool);
    if (last) close(tiles[i], item);
  }
}

}  // namespace dp::DP_ISA
