// A split of a decoding row over bf16 KV, in tile registers.
//
// A query or a weight is the sum of two bf16 that both take part, so rounding errs by at most 2^-16 of it; products and
// sums are fp32. Keys and values are rows of tiles as they lie in memory:
//
//   score[key][n] = sum over d of key[key][d] x query[d][n]. Column n is the high part of row n, column 8 + n its low
//   part. out[m][n] = sum over keys of weight[m][key] x value[key][n]. A product takes pairs of neighbours in a row of
//   values as if they were of two keys. So a weight stands in a pair with 0: first in row m, for even elements, second
//   in row 8 + m, for odd ones.
//
// Memory is prefetched kLead rows before it is multiplied: keys, then values, then the first keys of the thread's next
// split. Its order is that of memory, so that what the machine prefetches by itself helps.
#pragma once
#include "host/amx.hpp"
#include "host/block.hpp"
#include "host/simd.hpp"

namespace dp::DP_ISA {

constexpr int kLead = 64;
// Query rows that are attended at once.
constexpr int kSliceRows = kTileSide / 2;
constexpr int kGroupTiles = 4;
constexpr int kGroupKeys = kGroupTiles * kTileSide;
constexpr int kSplitKeys = (cfg::kSplitTokens + kGroupKeys - 1) / kGroupKeys * kGroupKeys;
// Elements of a head that a tile takes; the last ones end with the head, and are 0 in a query where they repeat.
constexpr int kSteps = (cfg::kHeadDim + kTilePairs - 1) / kTilePairs;
constexpr int step_begin(int step) {
  return (step + 1) * kTilePairs <= cfg::kHeadDim ? step * kTilePairs : cfg::kHeadDim - kTilePairs;
}
constexpr int64_t kKeyBytes = cfg::kHeadDim * sizeof(Bf16);
// Scores are logarithms to the base of 2, but under a soft cap, which takes them as they are.
constexpr float kLog2E = 1.44269504F;
constexpr float kScoreScale = cfg::kAttentionScale * (cfg::kAttentionSoftcap > 0 ? 1.0F : kLog2E);

// Keys of a split, the last one repeated up to a multiple of kGroupKeys. Values lie kValueOffset behind.
struct SplitKeys {
  const Bf16* key[kSplitKeys];
  int count;
};

struct alignas(64) SplitTiles {
  Bf16 query[kSteps][kTileSide][kTilePairs];
  Bf16 rows[kGroupTiles][kTileSide][cfg::kHeadDim];
  float product[kGroupTiles][kTileSide][kTileSide];
  float score[kSliceRows][kSplitKeys];
  float high[kSplitKeys / kTileSide][kTileSide][kTileSide];
  float low[kSplitKeys / kTileSide][kTileSide][kTileSide];
};

// Rows that are read one after the other.
struct Stream {
  static constexpr int kLine = 64 / sizeof(Bf16);
  struct Part {
    const Bf16* const* row;
    const Bf16* const* end;
    int64_t offset;
  };
  Part parts[3];
  int at = 0;

  void advance(int rows) {
    for (; at < 3; ++at) {
      Part& part = parts[at];
      for (; part.row < part.end; ++part.row) {
        if (rows-- == 0) return;
#pragma GCC unroll 16
        for (int i = 0; i < cfg::kHeadDim; i += kLine) {
          _mm_prefetch(reinterpret_cast<const char*>(*part.row + part.offset + i), _MM_HINT_T1);
        }
      }
    }
  }
};

// The bf16 that x begins with, and in the upper half of a float.
inline Vec high_part(Vec x) {
  return reinterpret_cast<Vec>(reinterpret_cast<IntVec>(x) & static_cast<int32_t>(0xffff0000));
}
// Of what high_part leaves, which is too small to overflow when rounded.
inline Vec low_part(Vec x) {
  return high_part(reinterpret_cast<Vec>(reinterpret_cast<IntVec>(x - high_part(x)) + 0x8000));
}
inline Vec lower_half(Vec x) {
  using Bits = uint32_t __attribute__((vector_size(4 * kLanes)));
  return reinterpret_cast<Vec>(reinterpret_cast<Bits>(x) >> 16);
}

inline Vec capped(Vec score) {
  constexpr float kCap = cfg::kAttentionSoftcap;
  if constexpr (kCap > 0) return kCap * kLog2E * tanh(score / kCap);
  return score;
}

// 2^x for x of at most 0, with an error below 3e-7.
inline Vec exp2(Vec x) {
  constexpr __mmask16 kAll = 0xffff;  // GCC warns of the forms without a mask
  const Vec whole = _mm512_maskz_roundscale_ps(kAll, x, _MM_FROUND_TO_NEAREST_INT);
  const Vec r = x - whole;
  Vec p = broadcast(1.3398874e-3F);
  constexpr float kCoefficients[] = {9.6184373e-3F, 5.5503324e-2F, 0.24022648F, 0.69314720F, 1.0F};
  for (const float coefficient : kCoefficients) p = p * r + coefficient;
  return _mm512_maskz_scalef_ps(kAll, p, whole);
}

template <int kStride, int... kLane>
inline void exchange(Vec& a, Vec& b, std::integer_sequence<int, kLane...>) {
  const Vec first = __builtin_shufflevector(a, b, ((kLane & kStride) != 0 ? kLanes + kLane - kStride : kLane)...);
  b = __builtin_shufflevector(a, b, ((kLane & kStride) != 0 ? kLanes + kLane : kLane + kStride)...);
  a = first;
}
// Lane j of v[i] becomes lane i of v[j].
template <int kStride = kLanes / 2>
inline void transpose(Vec* v) {
#pragma GCC unroll 16
  for (int i = 0; i < kLanes; ++i) {
    if ((i & kStride) == 0) exchange<kStride>(v[i], v[i + kStride], std::make_integer_sequence<int, kLanes>());
  }
  if constexpr (kStride > 1) transpose<kStride / 2>(v);
}

// Row r of the transposed: a pair of elements of each query, first their high parts, then the low ones.
inline void pack_queries(SplitTiles& tiles, const float* query, int rows) {
  for (int step = 0; step < kSteps; ++step) {
    Vec pairs[kTileSide] = {};
#pragma GCC unroll 8
    for (int r = 0; r < kSliceRows; ++r) {
      if (r >= rows) break;
      const float* from = query + r * cfg::kHeadDim + step_begin(step);
      const Vec first = step_begin(step) < step * kTilePairs ? Vec{} : load(from) * kScoreScale;
      const Vec second = load(from + kLanes) * kScoreScale;
      pairs[r] = reinterpret_cast<Vec>(_mm512_cvtne2ps_pbh(high_part(second), high_part(first)));
      pairs[kSliceRows + r] = reinterpret_cast<Vec>(_mm512_cvtne2ps_pbh(low_part(second), low_part(first)));
    }
    transpose(pairs);
#pragma GCC unroll 16
    for (int r = 0; r < kTileSide; ++r) __builtin_memcpy(tiles.query[step][r], &pairs[r], sizeof pairs[r]);
  }
}

// 16 rows at `row` + offset, one behind the other: where they lie if they do so, else a copy in `copy`.
inline const Bf16* tile_rows(const Bf16* const* row, int64_t offset, Bf16 (*copy)[cfg::kHeadDim]) {
  bool run = true;
  for (int i = 1; i < kTileSide; ++i) run &= row[i] == row[0] + i * cfg::kHeadDim;
  if (run) return row[0] + offset;
  for (int i = 0; i < kTileSide; ++i) __builtin_memcpy(copy[i], row[i] + offset, kKeyBytes);
  return copy[0];
}

template <int kTile>
inline void score_step(const Bf16* key, int step) {
  constexpr int kTileOfKeys = 4 + kTile % 2;
  load_tile<kTileOfKeys>(key + step_begin(step), kKeyBytes);
  multiply_tiles<kTile, kTileOfKeys, 6>();
}

inline void score_keys(SplitTiles& tiles, const SplitKeys& keys, int rows, Stream& stream) {
  constexpr int kAhead = (kTileSide + kSteps - 1) / kSteps;
  for (int j = 0; j < keys.count; j += kGroupKeys) {
    const Bf16* key[kGroupTiles];
    for (int t = 0; t < kGroupTiles; ++t) key[t] = tile_rows(keys.key + j + t * kTileSide, 0, tiles.rows[t]);
    zero_tile<0>();
    zero_tile<1>();
    zero_tile<2>();
    zero_tile<3>();
#pragma GCC unroll 8
    for (int step = 0; step < kSteps; ++step) {
      load_tile<6>(tiles.query[step], 64);
      score_step<0>(key[0], step);
      stream.advance(kAhead);
      score_step<1>(key[1], step);
      stream.advance(kAhead);
      score_step<2>(key[2], step);
      stream.advance(kAhead);
      score_step<3>(key[3], step);
      stream.advance(kAhead);
    }
    store_tile<0>(tiles.product[0], 64);
    store_tile<1>(tiles.product[1], 64);
    store_tile<2>(tiles.product[2], 64);
    store_tile<3>(tiles.product[3], 64);
    for (int t = 0; t < kGroupTiles; ++t) {
      Vec v[kTileSide];
#pragma GCC unroll 16
      for (int i = 0; i < kTileSide; ++i) v[i] = load(tiles.product[t][i]);
      transpose(v);
#pragma GCC unroll 8
      for (int r = 0; r < kSliceRows; ++r) {
        if (r >= rows) break;
        store(&tiles.score[r][j + t * kTileSide], capped(v[r] + v[kSliceRows + r]));
      }
    }
  }
}

// Scores of row r to weights; returns its highest score and the sum of its weights.
inline std::pair<float, float> soften_split(SplitTiles& tiles, int r, int count) {
  const float* score = tiles.score[r];
  Vec highest = load(score);
  for (int j = kLanes; j < count; j += kLanes) highest = max(highest, load(score + j));
  const float peak = max_lane(highest);
  Vec mass{};
  for (int j = 0; j < count; j += kLanes) {
    Vec weight = exp2(load(score + j) - peak);
    if (count - j < kLanes) weight = _mm512_maskz_mov_ps(static_cast<__mmask16>((1 << (count - j)) - 1), weight);
    mass += weight;
    const Vec high = high_part(weight), low = low_part(weight);
    const int t = j / kTileSide;
    store(tiles.high[t][r], lower_half(high));
    store(tiles.high[t][kSliceRows + r], high);
    store(tiles.low[t][r], lower_half(low));
    store(tiles.low[t][kSliceRows + r], low);
  }
  return {peak, sum(mass)};
}

template <int kTile>
inline void out_step(const Bf16* value, int step) {
  constexpr int kTileOfValues = 6 + kTile % 2;
  load_tile<kTileOfValues>(value + step_begin(step), kKeyBytes);
  multiply_tiles<kTile, 4, kTileOfValues>();
  multiply_tiles<kTile, 5, kTileOfValues>();
}

// Elements of out[r] from those of step kFirst, for up to kGroupTiles steps.
template <int kFirst>
inline void out_group(SplitTiles& tiles, const SplitKeys& keys, int rows, const float* scale, float* out,
                      Stream& stream) {
  constexpr int kCount = kSteps - kFirst < kGroupTiles ? kSteps - kFirst : kGroupTiles;
  constexpr int kAhead = (kTileSide + kSteps - 1) / kSteps;
  zero_tile<0>();
  if constexpr (kCount > 1) zero_tile<1>();
  if constexpr (kCount > 2) zero_tile<2>();
  if constexpr (kCount > 3) zero_tile<3>();
  for (int j = 0; j < keys.count; j += kTileSide) {
    const Bf16* value = tile_rows(keys.key + j, kValueOffset, tiles.rows[j / kTileSide % kGroupTiles]);
    load_tile<4>(tiles.high[j / kTileSide], 64);
    load_tile<5>(tiles.low[j / kTileSide], 64);
    out_step<0>(value, kFirst);
    stream.advance(kAhead);
    if constexpr (kCount > 1) {
      out_step<1>(value, kFirst + 1);
      stream.advance(kAhead);
    }
    if constexpr (kCount > 2) {
      out_step<2>(value, kFirst + 2);
      stream.advance(kAhead);
    }
    if constexpr (kCount > 3) {
      out_step<3>(value, kFirst + 3);
      stream.advance(kAhead);
    }
  }
  store_tile<0>(tiles.product[0], 64);
  if constexpr (kCount > 1) store_tile<1>(tiles.product[1], 64);
  if constexpr (kCount > 2) store_tile<2>(tiles.product[2], 64);
  if constexpr (kCount > 3) store_tile<3>(tiles.product[3], 64);
  for (int r = 0; r < rows; ++r) {
    for (int t = 0; t < kCount; ++t) {
      const Vec even = load(tiles.product[t][r]) * scale[r], odd = load(tiles.product[t][kSliceRows + r]) * scale[r];
      float* to = out + r * cfg::kHeadDim + step_begin(kFirst + t);
      store(to, __builtin_shufflevector(even, odd, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23));
      store(to + kLanes,
            __builtin_shufflevector(even, odd, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31));
    }
  }
  if constexpr (kFirst + kCount < kSteps) out_group<kFirst + kCount>(tiles, keys, rows, scale, out, stream);
}

// out[r][d] and lse[r] of query[r][d], the heads of one KV head; `next` are the keys that the thread reads then.
inline void attend_split(SplitTiles& tiles, const SplitKeys& keys, const SplitKeys& next, const float* query,
                         float* out, float* lse) {
  const auto lead = [](const SplitKeys& of) { return of.key + (of.count < kLead ? of.count : kLead); };
  const auto end = [](const SplitKeys& of) { return of.key + of.count; };
  Stream stream = {{{lead(keys), end(keys), 0}, {keys.key, end(keys), kValueOffset}, {next.key, lead(next), 0}}};
  for (int first = 0; first < cfg::kGqaRatio; first += kSliceRows) {
    const int rows = cfg::kGqaRatio - first < kSliceRows ? cfg::kGqaRatio - first : kSliceRows;
    pack_queries(tiles, query + first * cfg::kHeadDim, rows);
    score_keys(tiles, keys, rows, stream);
    float scale[kSliceRows];
    for (int r = 0; r < rows; ++r) {
      stream.advance(kLead / rows);
      const auto [peak, mass] = soften_split(tiles, r, keys.count);
      scale[r] = 1.0F / mass;
      lse[first + r] = peak / kLog2E + __builtin_logf(mass);
    }
    out_group<0>(tiles, keys, rows, scale, out + first * cfg::kHeadDim, stream);
  }
}

}  // namespace dp::DP_ISA
