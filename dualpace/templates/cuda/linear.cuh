// y[rows][out] = x[rows][in] * w[out][in]^T for few rows: the weights are read once, at memory bandwidth.
//
// A CTA makes the outputs of some strips of 16 weight rows; its warps share the inputs out among them, and add up their
// sums at the end, in their order. Products are m16n8k16, with weights as rows and x as columns. Each lane copies to
// shared memory just the weights that it multiplies itself: a ring that no other lane touches, deep enough to cover the
// latency of memory. It is filled before the kernel waits for the one that makes its inputs.
//
// A row's result depends neither on the rows beside it nor on how many there are.
#pragma once
#include "common/layout.hpp"
#include "common/portable.hpp"
#include "cuda/element.cuh"
#include "cuda/linear_epilogue.cuh"
#include "cuda/ptx.cuh"

namespace dp {

// How a product is cut up: the strips of a CTA, blocks of 32 inputs that a warp takes in a turn, and CTAs that share an
// SM, whose memory they fill with turns.
struct Tiling {
  int strips;
  int blocks;
  int resident;
};

// What was fastest on an H200 at the widths of Llama 8B. The more rows, the more strips have to share a reading of x.
// Of wide products two CTAs share an SM, one of which works while the other begins or ends; a narrow one has no more
// CTAs than the GPU has SMs.
constexpr Tiling tiling(int rows, int outputs) {
  constexpr int kSms = 132;
  const int strips = outputs / 16;
  if (rows <= 2) return {1, 4, 2};
  if (strips >= 1024) return {rows <= 8 && strips < 4096 ? 2 : 4, 1, 2};
  return rows <= 8 && strips <= 2 * kSms ? Tiling{2, 2, 1} : Tiling{4, 1, 1};
}

// Outputs come in pairs: i and i + kSpan / 2 of each kSpan of them, for i below that half. A warp has both at hand.
//
// An Epilogue takes them, with `put(held, row, output, low, high)` for the pair that begins at `output`, after its
// `hold(row, output)` has loaded what that needs. It also says which rows of x are read.
template <int kRows, int kOut, int kIn, class Epilogue, Tiling kTiling = tiling(kRows, kOut)>
class Linear {
 public:
  static constexpr int kWarps = 8;
  static constexpr int kThreads = kWarps * 32;

 private:
  static constexpr int kBlocks = kTiling.blocks;
  static constexpr int kBlock = 32;
  static constexpr int kChunk = kBlocks * kBlock;  // inputs of a warp's turn
  static constexpr int kTurnInputs = kWarps * kChunk;
  static constexpr int kTurns = (kIn + kTurnInputs - 1) / kTurnInputs;
  static_assert(kIn % kVector == 0, "a row of weights must be whole 16-byte vectors");

  static constexpr int kStrips = kTiling.strips;
  static constexpr int kSpan = Epilogue::kSpan, kSpanStrips = kSpan / 16;
  static constexpr int kAllStrips = (kOut + 15) / 16;
  static constexpr bool kWhole = kOut % (16 * kStrips) == 0;
  static_assert(kSpan % 16 == 0 && (kSpan == 16 || kOut % kSpan == 0), "a strip has both of each pair");

  static constexpr int kColumns = (kRows + 7) / 8;  // tiles of eight rows of x
  static constexpr int kColumnRows = least(kRows, 8);

  struct Stage {
    uint4 weight[kStrips][2][kBlocks][32];
    uint4 input[kColumns][kBlocks][kColumnRows * 4];
  };
  static constexpr int stages(int resident) {
    return (kSmBytes / resident - 1024 - kRows * 4) / (kWarps * static_cast<int>(sizeof(Stage)));
  }

 public:
  // An SM with little memory has one CTA, with two stages if it must.
  static constexpr int kResident = stages(kTiling.resident) >= 2 ? kTiling.resident : 1;

 private:
  static constexpr int kStages = most(stages(kResident), 2);
  using Ring = Stage[kStages];
  using Sums = float[kWarps][kRows][kStrips * 16];

 public:
  static constexpr int kCtas = (kAllStrips + kStrips - 1) / kStrips;

  struct Shared {
    union {
      Ring ring[kWarps];
      Sums sums;
    };
    float scale[kRows];
  };

  static __device__ void multiply(const Element* w, const Element* x, unsigned char* memory, const Epilogue& epilogue) {
    auto& shared = *reinterpret_cast<Shared*>(memory);
    const Linear linear(w, x, epilogue);
    Ring& ring = shared.ring[linear.warp_];
#pragma unroll
    for (int turn = 0; turn < kStages; ++turn) {
      linear.copy_weights(turn, ring[turn]);
      commit_copies();
    }
    launch_dependents();
    wait_dependency();
#pragma unroll
    for (int turn = 0; turn < kStages; ++turn) {
      linear.copy_inputs(turn, ring[turn]);
      commit_copies();
    }
    start_scales<kRows, kWarps>(epilogue.squares, epilogue, shared.scale);
    typename Epilogue::Held held[kItems];
    linear.each_item([&](int i, int row, int, int output) { held[i] = epilogue.hold(row, output); });
    Sum sum = {};
    int stage = 0;
    for (int turn = 0; turn < kTurns; ++turn) {
      wait_copies<kStages - 1>();
      __syncwarp();  // lanes share the inputs
      add(ring[stage], sum);
      __syncwarp();
      linear.copy_weights(turn + kStages, ring[stage]);
      linear.copy_inputs(turn + kStages, ring[stage]);
      commit_copies();
      stage = stage == kStages - 1 ? 0 : stage + 1;
    }
    wait_copies<0>();
    __syncthreads();
    linear.give(sum, shared.sums);
    __syncthreads();
    linear.each_item([&](int i, int row, int column, int output) {
      const float scale = shared.scale[row];
      epilogue.put(held[i], row, output, scale * total(shared.sums, row, column),
                   scale * total(shared.sums, row, column + 8));
    });
  }

 private:
  using Sum = float[kStrips][kColumns][4];

  __device__ Linear(const Element* w, const Element* x, const Epilogue& epilogue)
      : warp_(static_cast<int>(threadIdx.x) / 32),
        g_(threadIdx.x % 32 / 4),
        q_(threadIdx.x % 4),
        first_strip_(static_cast<int>(blockIdx.x) * kStrips),
        w_(w + int64_t{output_of(first_strip_) + g_} * kIn + q_ * kVector) {
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
      x_[c] = x + int64_t{epilogue.input_row(least(c * 8 + g_, kRows - 1))} * kIn + q_ * kVector;
    }
  }

  static __device__ int lane() { return threadIdx.x % 32; }

  // The first output of a strip, whose row of weights is the first of its lower half.
  static __device__ constexpr int output_of(int strip) { return strip / kSpanStrips * kSpan + strip % kSpanStrips * 8; }

  // The same from the CTA's first strip on; a constant where the strips of a CTA are all of one span.
  __device__ int offset_of(int strip) const {
    if (kSpanStrips == 1 || kSpanStrips % kStrips == 0) return output_of(strip);
    return output_of(first_strip_ + strip) - output_of(first_strip_);
  }

  // The first input of the warp's turn.
  __device__ int begin_of(int turn) const { return (turn * kWarps + warp_) * kChunk; }

  __device__ bool valid_input(int k) const { return kIn % kTurnInputs == 0 || k + q_ * kVector < kIn; }

  __device__ void copy_weights(int turn, Stage& stage) const {
    if (turn >= kTurns) return;
#pragma unroll
    for (int s = 0; s < kStrips; ++s) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = offset_of(s) + half * (kSpan / 2);
        const bool valid_row = kWhole || output_of(first_strip_) + row + g_ < kOut;
#pragma unroll
        for (int b = 0; b < kBlocks; ++b) {
          const int k = begin_of(turn) + b * kBlock;
          const bool valid = valid_row && valid_input(k);
          const Element* from = w_ + int64_t{row} * kIn + k;
          copy_vector(shared_address(&stage.weight[s][half][b][lane()]), valid ? from : w_, valid);
        }
      }
    }
  }

  __device__ void copy_inputs(int turn, Stage& stage) const {
    if (turn >= kTurns || g_ >= kColumnRows) return;
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
#pragma unroll
      for (int b = 0; b < kBlocks; ++b) {
        const int k = begin_of(turn) + b * kBlock;
        const bool valid = valid_input(k);
        copy_vector<true>(shared_address(&stage.input[c][b][lane()]), valid ? x_[c] + k : x_[c], valid);
      }
    }
  }

  // The elements of a product are taken in another order than they lie in: a lane's eight neighbours of a row are both
  // its pairs in two products. Weights and inputs agree in that.
  static __device__ void add(const Stage& stage, Sum& sum) {
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) {
      uint4 input[kColumns];
#pragma unroll
      for (int c = 0; c < kColumns; ++c) input[c] = stage.input[c][b][lane() % (kColumnRows * 4)];
#pragma unroll
      for (int s = 0; s < kStrips; ++s) {
        const uint4 low = stage.weight[s][0][b][lane()], high = stage.weight[s][1][b][lane()];
#pragma unroll
        for (int c = 0; c < kColumns; ++c) {
          mma<Element>(sum[s][c], {low.x, high.x, low.y, high.y}, {input[c].x, input[c].y});
          mma<Element>(sum[s][c], {low.z, high.z, low.w, high.w}, {input[c].z, input[c].w});
        }
      }
    }
  }

  __device__ void give(const Sum& sum, Sums& sums) const {
#pragma unroll
    for (int s = 0; s < kStrips; ++s) {
#pragma unroll
      for (int c = 0; c < kColumns; ++c) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int row = c * 8 + q_ * 2 + i % 2;
          if (row < kRows) sums[warp_][row][s * 16 + i / 2 * 8 + g_] = sum[s][c][i];
        }
      }
    }
  }

  static __device__ float total(const Sums& sums, int row, int column) {
    float value = 0;
#pragma unroll
    for (int warp = 0; warp < kWarps; ++warp) value += sums[warp][row][column];
    return value;
  }

  // Pairs of a row that the CTA makes, and how many of all rows' are a thread's.
  static constexpr int kPairs = kStrips * 8;
  static constexpr int kItems = (kRows * kPairs + kThreads - 1) / kThreads;

  // Calls body(i, row, column, output) for the thread's pairs; `column` is where its sums begin. Neighbouring threads
  // have neighbouring pairs.
  template <class Body>
  __device__ void each_item(Body body) const {
#pragma unroll
    for (int i = 0; i < kItems; ++i) {
      const int item = i * kThreads + static_cast<int>(threadIdx.x);
      if (item >= kRows * kPairs) break;
      const int row = item / kPairs, strip = item % kPairs / 8, pair = item % 8;
      if (!kWhole && first_strip_ + strip >= kAllStrips) continue;
      body(i, row, strip * 16 + pair, output_of(first_strip_ + strip) + pair);
    }
  }

  int warp_, g_, q_, first_strip_;
  const Element* w_;
  const Element* x_[kColumns];
};

}  // namespace dp
