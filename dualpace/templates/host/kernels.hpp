// The kernels of one instruction set, as a table. Pointers to elements of cfg::kDType are void: the units of different
// instruction sets have types of their own.
#pragma once
#include "host/workspace.hpp"

namespace dp {

struct Kernels {
  void (*embed)(const void* table, const int32_t* token, float* residual, int tokens);
  void (*norm)(const void* weight, const float* x, float* y, int tokens);
  void (*add_norm)(const void* weight, float* residual, const float* y, float* x, int tokens);
  void (*linear)(const void* w, const void* bias, const float* x, float* y, void* scratch, int in, int out, int rows);
  void (*rope_angles)(const int32_t* position, const float* frequencies, float factor, float* angles, int tokens);
  void (*rope_append)(const int32_t* slot, const float* angles, const void* q_norm, const void* k_norm, float* qkv,
                      void* pool, int tokens);
  void (*attention)(StepBuffers& step, int group, const float* qkv, const void* pool, Workspace& workspace, float* out);
  void (*attend_blocks)(const float* query, const void* pool, const int32_t* block, int blocks, float* out, float* lse);
  void (*attention_pass)(StepBuffers& step, int row, const int32_t* table, int context, int begin, int end,
                         const float* qkv, const void* pool, Workspace& workspace, void* carried, float* out);
  size_t carried_bytes;
  void (*gate)(const float* gate_up, float* act, int tokens);
  void (*gather)(const float* x, const int32_t* index, float* last, int samples);
};

namespace v3 {
extern const Kernels kernels;
}
namespace v4 {
extern const Kernels kernels;
}
namespace v4_bf16 {
extern const Kernels kernels;
}
namespace v4_amx {
extern const Kernels kernels;
}

}  // namespace dp
