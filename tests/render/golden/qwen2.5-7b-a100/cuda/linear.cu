// cuda/linear.cu.j2 for the deployment "qwen2.5-7b-a100": qwen2 in bf16, GQA ratio 7,
// head_dim 128, pages of 16 tokens, on a100.
// The products of decode steps of few rows: for each such bucket a kernel for each weight of a layer, and the head.
//
// All take a weight `w` [out][in] and x [rows][in]; rows are the step's tokens. `squares` are those of x if its norm is
// deferred, else null. What else they take and what they write is said at their epilogues. Grid:
// dp_linear_NAME_ROWS_ctas.
#include "cuda/linear.cuh"

namespace dp {

using Qkv1 = Linear<1, kQkvColumns, cfg::kHidden, ToRotated>;
extern "C" {
__constant__ int64_t dp_linear_qkv_1_ctas = Qkv1::kCtas;
__constant__ int64_t dp_linear_qkv_1_shared_bytes = sizeof(Qkv1::Shared);
}
extern "C" __global__ void __launch_bounds__(Qkv1::kThreads, Qkv1::kResident)
    dp_linear_qkv_1(const StepBuffers* step, const Element* w, const Element* x,
                    const float* squares, const Element* bias, int group, const float2* angles,
                    Element* qkv, Element* pool) {
  extern __shared__ __align__(16) unsigned char memory[];
  Qkv1::multiply(w, x, memory, {{}, step, squares, bias, group, angles, qkv, pool});
}

using O1 = Linear<1, cfg::kHidden, cfg::kHeads * cfg::kHeadDim, ToResidual>;
extern "C" {
__constant__ int64_t dp_linear_o_1_ctas = O1::kCtas;
__constant__ int64_t dp_linear_o_1_shared_bytes = sizeof(O1::Shared);
}
extern "C" __global__ void __launch_bounds__(O1::kThreads, O1::kResident)
    dp_linear_o_1(const StepBuffers* step, const Element* w, const Element* x,
                  float* residual, const Element* norm, Element* x_of_norm, float* squares_of_norm) {
  extern __shared__ __align__(16) unsigned char memory[];
  O1::multiply(w, x, memory, {{}, static_cast<int>(step->tokens), residual, norm, x_of_norm, squares_of_norm});
}

using Down1 = Linear<1, cfg::kHidden, cfg::kIntermediate, ToResidual>;
extern "C" {
__constant__ int64_t dp_linear_down_1_ctas = Down1::kCtas;
__constant__ int64_t dp_linear_down_1_shared_bytes = sizeof(Down1::Shared);
}
extern "C" __global__ void __launch_bounds__(Down1::kThreads, Down1::kResident)
    dp_linear_down_1(const StepBuffers* step, const Element* w, const Element* x,
                     float* residual, const Element* norm, Element* x_of_norm, float* squares_of_norm) {
  extern __shared__ __align__(16) unsigned char memory[];
  Down1::multiply(w, x, memory, {{}, static_cast<int>(step->tokens), residual, norm, x_of_norm, squares_of_norm});
}

using GateUp1 = Linear<1, 2 * cfg::kIntermediate, cfg::kHidden, ToActivation>;
extern "C" {
__constant__ int64_t dp_linear_gate_up_1_ctas = GateUp1::kCtas;
__constant__ int64_t dp_linear_gate_up_1_shared_bytes = sizeof(GateUp1::Shared);
}
extern "C" __global__ void __launch_bounds__(GateUp1::kThreads, GateUp1::kResident)
    dp_linear_gate_up_1(const StepBuffers* step, const Element* w, const Element* x,
                        const float* squares, Element* act) {
  extern __shared__ __align__(16) unsigned char memory[];
  GateUp1::multiply(w, x, memory, {{}, static_cast<int>(step->tokens), squares, act});
}

using Head1 = Linear<1, cfg::kVocab, cfg::kHidden, ToLogits>;
extern "C" {
__constant__ int64_t dp_linear_head_1_ctas = Head1::kCtas;
__constant__ int64_t dp_linear_head_1_shared_bytes = sizeof(Head1::Shared);
}
extern "C" __global__ void __launch_bounds__(Head1::kThreads, Head1::kResident)
    dp_linear_head_1(const StepBuffers* step, const Element* w, const Element* x,
                     const float* squares, float* logits) {
  extern __shared__ __align__(16) unsigned char memory[];
  Head1::multiply(w, x, memory, {{step}, squares, logits});
}

using Qkv8 = Linear<8, kQkvColumns, cfg::kHidden, ToRotated>;
extern "C" {
__constant__ int64_t dp_linear_qkv_8_ctas = Qkv8::kCtas;
__constant__ int64_t dp_linear_qkv_8_shared_bytes = sizeof(Qkv8::Shared);
}
extern "C" __global__ void __launch_bounds__(Qkv8::kThreads, Qkv8::kResident)
    dp_linear_qkv_8(const StepBuffers* step, const Element* w, const Element* x,
                    const float* squares, const Element* bias, int group, const float2* angles,
                    Element* qkv, Element* pool) {
  extern __shared__ __align__(16) unsigned char memory[];
  Qkv8::multiply(w, x, memory, {{}, step, squares, bias, group, angles, qkv, pool});
}

using O8 = Linear<8, cfg::kHidden, cfg::kHeads * cfg::kHeadDim, ToResidual>;
extern "C" {
__constant__ int64_t dp_linear_o_8_ctas = O8::kCtas;
__constant__ int64_t dp_linear_o_8_shared_bytes = sizeof(O8::Shared);
}
extern "C" __global__ void __launch_bounds__(O8::kThreads, O8::kResident)
    dp_linear_o_8(const StepBuffers* step, const Element* w, const Element* x,
                  float* residual, const Element* norm, Element* x_of_norm, float* squares_of_norm) {
  extern __shared__ __align__(16) unsigned char memory[];
  O8::multiply(w, x, memory, {{}, static_cast<int>(step->tokens), residual, norm, x_of_norm, squares_of_norm});
}

using Down8 = Linear<8, cfg::kHidden, cfg::kIntermediate, ToResidual>;
extern "C" {
__constant__ int64_t dp_linear_down_8_ctas = Down8::kCtas;
__constant__ int64_t dp_linear_down_8_shared_bytes = sizeof(Down8::Shared);
}
extern "C" __global__ void __launch_bounds__(Down8::kThreads, Down8::kResident)
    dp_linear_down_8(const StepBuffers* step, const Element* w, const Element* x,
                     float* residual, const Element* norm, Element* x_of_norm, float* squares_of_norm) {
  extern __shared__ __align__(16) unsigned char memory[];
  Down8::multiply(w, x, memory, {{}, static_cast<int>(step->tokens), residual, norm, x_of_norm, squares_of_norm});
}

using GateUp8 = Linear<8, 2 * cfg::kIntermediate, cfg::kHidden, ToActivation>;
extern "C" {
__constant__ int64_t dp_linear_gate_up_8_ctas = GateUp8::kCtas;
__constant__ int64_t dp_linear_gate_up_8_shared_bytes = sizeof(GateUp8::Shared);
}
extern "C" __global__ void __launch_bounds__(GateUp8::kThreads, GateUp8::kResident)
    dp_linear_gate_up_8(const StepBuffers* step, const Element* w, const Element* x,
                        const float* squares, Element* act) {
  extern __shared__ __align__(16) unsigned char memory[];
  GateUp8::multiply(w, x, memory, {{}, static_cast<int>(step->tokens), squares, act});
}

using Head8 = Linear<8, cfg::kVocab, cfg::kHidden, ToLogits>;
extern "C" {
__constant__ int64_t dp_linear_head_8_ctas = Head8::kCtas;
__constant__ int64_t dp_linear_head_8_shared_bytes = sizeof(Head8::Shared);
}
extern "C" __global__ void __launch_bounds__(Head8::kThreads, Head8::kResident)
    dp_linear_head_8(const StepBuffers* step, const Element* w, const Element* x,
                     const float* squares, float* logits) {
  extern __shared__ __align__(16) unsigned char memory[];
  Head8::multiply(w, x, memory, {{step}, squares, logits});
}

}  // namespace dp
