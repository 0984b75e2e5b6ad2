// Called by clang's instrumentation at each load and store: the cache lines touched while counting.
#include <cstddef>
#include <cstdint>
#include <unordered_set>

namespace {

std::unordered_set<uintptr_t> lines;
bool counting = false;

void touch(const void* address, uintptr_t bytes) {
  if (!counting) return;
  const auto at = reinterpret_cast<uintptr_t>(address);
  lines.insert(at / 64);
  lines.insert((at + bytes - 1) / 64);
}

}  // namespace

void start_counting() {
  lines.clear();
  counting = true;
}

size_t touched_lines() {
  counting = false;
  return lines.size();
}

extern "C" {

void __sanitizer_cov_load1(const void* address) { touch(address, 1); }
void __sanitizer_cov_load2(const void* address) { touch(address, 2); }
void __sanitizer_cov_load4(const void* address) { touch(address, 4); }
void __sanitizer_cov_load8(const void* address) { touch(address, 8); }
void __sanitizer_cov_load16(const void* address) { touch(address, 16); }
void __sanitizer_cov_store1(const void* address) { touch(address, 1); }
void __sanitizer_cov_store2(const void* address) { touch(address, 2); }
void __sanitizer_cov_store4(const void* address) { touch(address, 4); }
void __sanitizer_cov_store8(const void* address) { touch(address, 8); }
void __sanitizer_cov_store16(const void* address) { touch(address, 16); }

}  // extern "C"
