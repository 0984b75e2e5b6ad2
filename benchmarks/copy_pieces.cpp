// A copy for each piece of each block, as a server does it that has nothing better: its calls are what takes the time.
#include <cstdint>

extern "C" {

// Copies blocks of `block` bytes from `host` to `pool` by `pairs` [count][2], in pieces, with the driver's
// cuMemcpyHtoDAsync. Returns the first error.
int copy_pieces(int (*copy)(uint64_t to, const void* from, uint64_t bytes, void* stream), const int32_t* pairs,
                int count, const char* host, uint64_t pool, int64_t block, int64_t piece, void* stream) {
  for (int i = 0; i < count; ++i) {
    for (int64_t offset = 0; offset < block; offset += piece) {
      const uint64_t to = pool + static_cast<uint64_t>(pairs[2 * i + 1] * block + offset);
      const int error = copy(to, host + pairs[2 * i] * block + offset, static_cast<uint64_t>(piece), stream);
      if (error != 0) return error;
    }
  }
  return 0;
}
}
