// Attention of prompt chunks with wgmma: Hopper. One warpgroup copies tiles into a ring, two others multiply 64 packed
// rows each. These take turns, so that one weighs scores while the products of the other run; and each starts the next
// scores before it weighs the present ones.
#pragma once
#include "cuda/mbarrier.cuh"
#include "cuda/prefill.cuh"
#include "cuda/wgmma.cuh"

namespace dp {

template <class T>
class WgmmaPrefill {
 public:
  static constexpr int kThreads = 3 * 128;

 private:
  static constexpr int kBlocks = (cfg::kHeadDim + 63) / 64;  // of 64 columns, 128 bytes
  static constexpr int kStages = 2;
  static constexpr int kQueries = cfg::kHeadDim <= 128 ? 2 : 1;

  template <int kRows>
  struct Tile {
    T block[kBlocks][kRows][64];
  };

  // A slot is filled by 128 threads and emptied by eight warps.
  template <int kSlots>
  struct Ring {
    uint64_t full[kSlots];
    uint64_t empty[kSlots];
  };

 public:
  struct Shared {
    Tile<kTileRows> query[kQueries];
    Tile<kTileKeys> keys[kStages];
    Tile<kTileKeys> values[kStages];
    Ring<kQueries> query_ring;
    Ring<kStages> key_ring, value_ring;
  };

  static __device__ void attend(PrefillTasks& tasks, int share, const int32_t* tables, int window, const T* qkv,
                                const T* pool, PrefillPartial* partial, T* out, Shared& shared) {
    if (threadIdx.x == 0) {
      init(shared.query_ring);
      init(shared.key_ring);
      init(shared.value_ring);
      publish_barriers();
    }
    __syncthreads();
    if (threadIdx.x < 128) {
      limit_registers<56>();
      produce(tasks, share, tables, qkv, pool, shared);
    } else {
      raise_registers<224>();
      consume(tasks, share, window, partial, out, shared);
    }
  }

 private:
  using Rows = PrefillRows<T>;
  using Scores = Wgmma<kTileKeys>;
  using Values = Wgmma<cfg::kHeadDim>;

  template <int kSlots>
  static __device__ void init(Ring<kSlots>& ring) {
    for (int i = 0; i < kSlots; ++i) {
      init_barrier(ring.full[i], 128);
      init_barrier(ring.empty[i], 8);
    }
  }

  // A place in a ring; `phase` is the parity of its barriers' next completion.
  template <int kSlots>
  struct Cursor {
    int slot = 0;
    uint32_t phase = 0;

    __device__ void advance() {
      if (++slot == kSlots) {
        slot = 0;
        phase ^= 1;
      }
    }
  };

  static __device__ int warp() { return static_cast<int>(threadIdx.x) / 32; }

  // The warp's quarter of a tile, as soon as its slot is empty.
  template <int kRows, int kSlots>
  static __device__ void fill(Tile<kRows>* tiles, Ring<kSlots>& ring, Cursor<kSlots>& at, const T* base, int source) {
    constexpr int kWarpRows = kRows / 4;
    wait_barrier(ring.empty[at.slot], at.phase ^ 1);
    const uint32_t to = shared_address(&tiles[at.slot]);
    copy_rows<kWarpRows>(base, source, [&](int row, int column) {
      row += warp() * kWarpRows;
      return to + (column / 8 * kRows + row) * 128 + (column ^ row) % 8 * 16;
    });
    arrive_after_copies(ring.full[at.slot]);
    at.advance();
  }

  static __device__ void produce(const PrefillTasks& tasks, int share, const int32_t* tables, const T* qkv,
                                 const T* pool, Shared& shared) {
    Cursor<kQueries> query;
    Cursor<kStages> key, value;
    const int lane = threadIdx.x % 32;
    each_task(tasks, share, [&](const PrefillTask& task) {
      const int32_t* table = tables + task.row_slot * cfg::kPagesPerRow;
      const auto source = [&](int first) {
        constexpr int kWarpKeys = kTileKeys / 4;
        return lane < kWarpKeys ? key_row(task, table, first + warp() * kWarpKeys + lane) : -1;
      };
      int first = task.begin / kTileKeys * kTileKeys;
      int present = source(first);
      fill(shared.query, shared.query_ring, query, qkv, query_row(task, warp() * 32 + lane));
      fill(shared.keys, shared.key_ring, key, pool, present);
      for (first += kTileKeys; first < task.end; first += kTileKeys) {
        const int before = present;
        present = source(first);
        fill(shared.keys, shared.key_ring, key, pool, present);
        fill(shared.values, shared.value_ring, value, pool + kValueOffset, before);
      }
      fill(shared.values, shared.value_ring, value, pool + kValueOffset, present);
    });
    wait_copies_of_thread();
  }

  static __device__ void consume(PrefillTasks& tasks, int share, int window, PrefillPartial* partial, T* out,
                                 Shared& shared) {
    const int half = warp() / 4 - 1;  // the warpgroup's of each tile of rows
    Cursor<kQueries> query;
    Cursor<kStages> key, value;
    float score[kTileKeys / 8][4] = {};
    if (half == 1) pass_turn(0);
    each_task(tasks, share, [&](const PrefillTask& task) {
      Rows rows(task, warp() - 4, window);
      const auto multiply_keys = [&] {
        const uint64_t a = matrix_of(shared_address(&shared.query[query.slot].block[0][half * 64]), 0);
        const uint64_t b = matrix_of(shared_address(&shared.keys[key.slot]), 0);
        begin_products();
#pragma unroll
        for (int k = 0; k < cfg::kHeadDim / 16; ++k) {
          const int column = k % 4 * 32;
          Scores::multiply(score, dp::advance(a, k / 4 * kTileRows * 128 + column),
                           dp::advance(b, k / 4 * kTileKeys * 128 + column), k > 0);
        }
        commit_products();
      };
      uint32_t weights[kTileKeys / 16][4];
      const auto add_values = [&] {
        const uint64_t b = matrix_of(shared_address(&shared.values[value.slot]), kTileKeys * 128);
        begin_products();
#pragma unroll
        for (int k = 0; k < kTileKeys / 16; ++k) Values::add(rows.value, weights[k], dp::advance(b, k * 16 * 128));
        commit_products();
      };
      float correction[2];
      int first = task.begin / kTileKeys * kTileKeys;
      wait_full(shared.query_ring.full[query.slot], query.phase);
      wait_full(shared.key_ring.full[key.slot], key.phase);
      take_turn(half);
      multiply_keys();
      pass_turn(1 - half);
      wait_products<0>();
      pin(score);
      release(shared.key_ring.empty[key.slot]);
      key.advance();
      rows.weigh(score, first, correction);
      Rows::narrow_weights(score, weights);
      for (first += kTileKeys; first < task.end; first += kTileKeys) {
        wait_full(shared.key_ring.full[key.slot], key.phase);
        take_turn(half);
        multiply_keys();
        rows.rescale(correction);
        wait_full(shared.value_ring.full[value.slot], value.phase);
        add_values();
        pass_turn(1 - half);
        wait_products<1>();
        pin(score);
        release(shared.key_ring.empty[key.slot]);
        key.advance();
        rows.weigh(score, first, correction);
        wait_products<0>();
        pin(rows.value);
        pin(weights);
        release(shared.value_ring.empty[value.slot]);
        value.advance();
        Rows::narrow_weights(score, weights);
      }
      release(shared.query_ring.empty[query.slot]);
      query.advance();
      rows.rescale(correction);
      wait_full(shared.value_ring.full[value.slot], value.phase);
      add_values();
      wait_products<0>();
      pin(rows.value);
      pin(weights);
      release(shared.value_ring.empty[value.slot]);
      value.advance();
      rows.finish(task, warp() - 4, tasks, partial, out);
    });
  }

  // Copies come through the generic proxy, products read through the asynchronous one.
  static __device__ void wait_full(uint64_t& barrier, uint32_t phase) {
    wait_barrier(barrier, phase);
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  }

  static __device__ void release(uint64_t& barrier) {
    if (threadIdx.x % 32 == 0) arrive(barrier);
  }

  // Named barriers of the two warpgroups' turns: one waits, the other lets it.
  static __device__ void take_turn(int half) { asm volatile("bar.sync %0, 256;" ::"r"(1 + half) : "memory"); }
  static __device__ void pass_turn(int half) { asm volatile("bar.arrive %0, 256;" ::"r"(1 + half) : "memory"); }

  template <int kRegisters>
  static __device__ void limit_registers() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
  }
  template <int kRegisters>
  static __device__ void raise_registers() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
  }
};

}  // namespace dp
