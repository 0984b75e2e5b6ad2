// The C interface of the kernels, for the best instruction set that this machine has.
#include <sys/syscall.h>
#include <unistd.h>

#include <cstring>

#include "host/kernels.hpp"

namespace {

using dp::Kernels;
using dp::StepBuffers;
using dp::Workspace;

struct Isa {
  const char* name;
  const Kernels* kernels;
};

// Tile registers are the process's for the asking; Linux grants them where it can save them.
bool tiles_granted() {
  constexpr int kRequestPermission = 0x1023;  // ARCH_REQ_XCOMP_PERM of asm/prctl.h, which older systems do not have
  constexpr int kTileData = 18;
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

// Best first; what is not listed cannot run here.
const Isa* available() {
  static Isa found[5] = {};
  static const bool once = [] {
    Isa* next = found;
    const bool v4 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                    __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
                    __builtin_cpu_supports("avx512vl");
    const bool bf16 = v4 && __builtin_cpu_supports("avx512bf16");
    if (bf16 && __builtin_cpu_supports("amx-bf16") && tiles_granted()) *next++ = {"v4_amx", &dp::v4_amx::kernels};
    if (bf16) *next++ = {"v4_bf16", &dp::v4_bf16::kernels};
    if (v4) *next++ = {"v4", &dp::v4::kernels};
    *next = {"v3", &dp::v3::kernels};
    return true;
  }();
  (void)once;
  return found;
}

const Isa* active = available();

}  // namespace

extern "C" {

const char* dp_isa() { return active->name; }

// For tests and measurements: uses the kernels of a lesser instruction set. Returns 0 if this machine lacks it.
int dp_use_isa(const char* name) {
  for (const Isa* isa = available(); isa->name != nullptr; ++isa) {
    if (std::strcmp(isa->name, name) == 0) {
      active = isa;
      return 1;
    }
  }
  return 0;
}

int64_t dp_workspace_bytes() { return sizeof(Workspace); }
int dp_streamed_rows() { return dp::kStreamedRows; }

void dp_embed(const void* table, const StepBuffers* step, float* residual) {
  active->kernels->embed(table, step->token, residual, static_cast<int>(step->tokens));
}

void dp_norm(const void* weight, const float* x, float* y, int tokens) { active->kernels->norm(weight, x, y, tokens); }

void dp_add_norm(const void* weight, float* residual, const float* y, float* x, int tokens) {
  active->kernels->add_norm(weight, residual, y, x, tokens);
}

// At most dp_streamed_rows() rows.
void dp_linear(const void* w, const void* bias, const float* x, float* y, Workspace* workspace, int in, int out,
               int rows) {
  active->kernels->linear(w, bias, x, y, workspace->inputs, in, out, rows);
}

void dp_rope_angles(const StepBuffers* step, const float* frequencies, float factor, float* angles) {
  active->kernels->rope_angles(step->position, frequencies, factor, angles, static_cast<int>(step->tokens));
}

void dp_rope_append(const StepBuffers* step, int group, const float* angles, const void* q_norm, const void* k_norm,
                    float* qkv, void* pool) {
  active->kernels->rope_append(step->slot[group], angles, q_norm, k_norm, qkv, pool, static_cast<int>(step->tokens));
}

void dp_attention(StepBuffers* step, int group, const float* qkv, const void* pool, Workspace* workspace, float* out) {
  active->kernels->attention(*step, group, qkv, pool, *workspace, out);
}

// On the calling thread alone.
void dp_attend_blocks(const float* query, const void* pool, const int32_t* block, int blocks, float* out, float* lse) {
  active->kernels->attend_blocks(query, pool, block, blocks, out, lse);
}

// A row of the slow lane, of layers whose KV may be in host memory: keys from `begin` to before `end` of `context`.
void dp_attention_pass(StepBuffers* step, int row, const int32_t* table, int context, int begin, int end,
                       const float* qkv, const void* pool, Workspace* workspace, void* carried, float* out) {
  active->kernels->attention_pass(*step, row, table, context, begin, end, qkv, pool, *workspace, carried, out);
}

size_t dp_carried_bytes() { return active->kernels->carried_bytes; }

void dp_gate(const float* gate_up, float* act, int tokens) { active->kernels->gate(gate_up, act, tokens); }

void dp_gather(const float* x, const StepBuffers* step, float* last) {
  active->kernels->gather(x, step->sample_index, last, static_cast<int>(step->samples));
}

}  // extern "C"
