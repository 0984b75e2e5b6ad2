// Rotary embedding: the angles of a step; then in each layer query-key norm, rotation, and the append of keys and
// values to the paged pool.
//
// Grids: any number of CTAs; best dp_kv_append_ctas_per_token for each token.
#include "common/layout.hpp"
#include "common/portable.hpp"
#include "cuda/element.cuh"
#include "cuda/ptx.cuh"

namespace dp {
namespace {

constexpr int kThreads = 128;
constexpr int kHalf = cfg::kHeadDim / 2;

// Elements that a lane moves at once of each half of a head: whole ones of the half, and no more than 16 bytes.
constexpr int part_size() {
  int size = kVector;
  while (kHalf % size != 0) size /= 2;
  return size;
}
constexpr int kPart = part_size();
constexpr int kParts = kHalf / kPart;

// Neighbouring lanes share a head. They are a power of two, so that sums over them are shuffles.
constexpr int head_lanes() {
  int lanes = 1;
  while (lanes < kParts) lanes *= 2;
  return lanes;
}
constexpr int kLanes = head_lanes();
static_assert(kLanes <= 32, "model.shape.head_dim is too large for one warp");

constexpr int kRowHeads = cfg::kHeads + 2 * cfg::kKvHeads;  // of a row of qkv
constexpr int kCtaHeads = kThreads / kLanes;

struct alignas(kPart * sizeof(Element)) Part {
  Element element[kPart];
};

inline __device__ Part load_part(const Element* from) { return *reinterpret_cast<const Part*>(from); }
inline __device__ void store_part(Element* to, const Part& part) { *reinterpret_cast<Part*>(to) = part; }

// Cosine and sine of `angle` without the local memory that sincosf takes for large arguments: the turn is reduced in
// double precision, which costs nothing at one angle a thread.
__device__ float2 unit(float angle) {
  constexpr double kTurnsPerRadian = 0.15915494309189535;
  const double turns = angle * kTurnsPerRadian;
  float2 rotation;
  sincospif(2.0f * static_cast<float>(turns - rint(turns)), &rotation.y, &rotation.x);
  return rotation;
}

// Elements i and i + kHalf of a head, for the lane's kPart values of i from `first` on.
struct Pairs {
  float low[kPart];
  float high[kPart];

  __device__ Pairs(const Part& a, const Part& b) {
#pragma unroll
    for (int i = 0; i < kPart; ++i) low[i] = widen(a.element[i]), high[i] = widen(b.element[i]);
  }

  // All lanes of the warp take part; those with no pairs have zeros.
  __device__ void normalise(const Part& low_weight, const Part& high_weight) {
    float squares = 0;
#pragma unroll
    for (int i = 0; i < kPart; ++i) squares += low[i] * low[i] + high[i] * high[i];
#pragma unroll
    for (int lanes = kLanes / 2; lanes > 0; lanes /= 2) squares += __shfl_xor_sync(~0u, squares, lanes);
    const float scale = rsqrtf(squares / cfg::kHeadDim + cfg::kNormEps);
#pragma unroll
    for (int i = 0; i < kPart; ++i) {
      low[i] *= scale * (widen(low_weight.element[i]) + cfg::kNormOffset);
      high[i] *= scale * (widen(high_weight.element[i]) + cfg::kNormOffset);
    }
  }

  __device__ void rotate(const float2* rotation, Part& a, Part& b) const {
#pragma unroll
    for (int i = 0; i < kPart; ++i) {
      const auto [cosine, sine] = rotation[i];
      a.element[i] = narrow(low[i] * cosine - high[i] * sine);
      b.element[i] = narrow(high[i] * cosine + low[i] * sine);
    }
  }
};

}  // namespace

extern "C" {
__constant__ int64_t dp_kv_append_ctas_per_token = (kRowHeads + kCtaHeads - 1) / kCtaHeads;
}

// angles [tokens][kHeadDim / 2]: `magnitude` times cosine and sine. `frequency` [kHeadDim / 2] is in radians a
// position. Once a step for each layer group.
extern "C" __global__ void __launch_bounds__(kThreads)
    dp_rope_angles(const StepBuffers* step, const float* frequency, float magnitude, float2* angles) {
  launch_dependents();
  wait_dependency();
  for (unsigned i = blockIdx.x * kThreads + threadIdx.x; i < step->tokens * kHalf; i += gridDim.x * kThreads) {
    // The product is rounded to float before it is reduced, as models are trained and published with.
    const float2 turn = unit(static_cast<float>(step->position[i / kHalf]) * frequency[i % kHalf]);
    angles[i] = {magnitude * turn.x, magnitude * turn.y};
  }
}

// For each token of the step: Q is normalised and rotated in place in `qkv` [tokens][kQkvColumns]; K likewise on its
// way to `pool`, the group's pool of one layer, at `slot`; V is copied there. `angles` are the group's of
// dp_rope_angles. `q_norm` and `k_norm` [kHeadDim] are read only with kQkNorm.
extern "C" __global__ void __launch_bounds__(kThreads)
    dp_kv_append(const StepBuffers* step, int group, const float2* angles, const Element* q_norm, const Element* k_norm,
                 Element* qkv, Element* pool) {
  launch_dependents();
  wait_dependency();
  const int lane = threadIdx.x % kLanes;
  const unsigned count = step->tokens * kRowHeads;
  for (unsigned first = blockIdx.x * kCtaHeads; first < count; first += gridDim.x * kCtaHeads) {
    const unsigned index = first + threadIdx.x / kLanes;
    const bool mine = index < count && lane < kParts;
    const unsigned token = mine ? index / kRowHeads : 0;
    const int head = mine ? static_cast<int>(index % kRowHeads) : 0;
    Element* in = qkv + int64_t{token} * kQkvColumns + head * cfg::kHeadDim + lane * kPart;
    Part low = {}, high = {};
    if (mine) low = load_part(in), high = load_part(in + kHalf);
    Pairs pairs(low, high);
    if constexpr (cfg::kQkNorm) {  // of values too, whose result nobody uses: all lanes have to take part
      const Element* norm = (head < cfg::kHeads ? q_norm : k_norm) + (mine ? lane * kPart : 0);
      pairs.normalise(load_part(norm), load_part(norm + kHalf));
    }
    if (!mine) continue;
    const bool value = head >= cfg::kHeads + cfg::kKvHeads;
    if (!value) pairs.rotate(angles + token * kHalf + lane * kPart, low, high);
    Element* out = in;
    if (head >= cfg::kHeads) {
      const int slot = step->slot[group][token], kv_head = (head - cfg::kHeads) % cfg::kKvHeads;
      out = pool + key_offset(slot / cfg::kPageSize, kv_head, slot % cfg::kPageSize) + lane * kPart;
      if (value) out += kValueOffset;
    }
    store_part(out, low);
    store_part(out + kHalf, high);
  }
}

}  // namespace dp
