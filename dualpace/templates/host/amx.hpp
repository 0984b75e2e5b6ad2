// Tile registers: each holds 16 rows of 64 bytes. A product adds to kTo[m][n], fp32, the sum over k of A[m][2k, 2k + 1]
// x B[k][n]'s pair: B has two rows of the mathematical matrix side by side in each row.
#pragma once
#include <cstdint>

namespace dp::DP_ISA {

constexpr int kTileSide = 16;   // rows, and fp32 columns
constexpr int kTilePairs = 32;  // bf16 columns

struct alignas(64) TileConfig {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};

inline void configure_tiles() {
  static const TileConfig kWhole;
  asm volatile("ldtilecfg %0" : : "m"(kWhole));
}
// Until then every switch of threads saves 8 KiB.
inline void release_tiles() { asm volatile("tilerelease"); }

template <int kTile>
inline void zero_tile() {
  asm volatile("tilezero %%tmm%c0" : : "i"(kTile));
}
template <int kTile>
inline void load_tile(const void* from, int64_t row_stride) {
  asm volatile("tileloadd (%0,%1,1), %%tmm%c2" : : "r"(from), "r"(row_stride), "i"(kTile) : "memory");
}
template <int kTile>
inline void store_tile(void* to, int64_t row_stride) {
  asm volatile("tilestored %%tmm%c2, (%0,%1,1)" : : "r"(to), "r"(row_stride), "i"(kTile) : "memory");
}
template <int kTo, int kA, int kB>
inline void multiply_tiles() {
  asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(kTo), "i"(kA), "i"(kB));
}

}  // namespace dp::DP_ISA
