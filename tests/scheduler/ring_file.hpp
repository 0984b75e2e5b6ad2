// A file of rings, as an engine makes it, for engine and frontends in one process.
#pragma once
#include <sys/mman.h>
#include <unistd.h>

#include <string>

#include "host/engine.cpp"
#include "host/ring.cpp"
#include "invariants.hpp"

namespace dp {

[[noreturn]] inline void fault(const char* what) {
  std::fprintf(stderr, "fault: %s\n", what);
  std::abort();
}

inline void expect(bool holds, const char* what) {
  if (!holds) fault(what);
}

// Both ends use one mapping: to thread sanitizer, what lies at two addresses are two things. Epochs begin so high that
// they wrap soon.
class RingFile {
 public:
  RingFile() {
    path_ = "/tmp/rings.XXXXXX";
    file_ = mkstemp(path_.data());
    expect(file_ >= 0 && ftruncate(file_, sizeof(RingMemory)) == 0, "no file of rings");
    void* address = mmap(nullptr, sizeof(RingMemory), PROT_READ | PROT_WRITE, MAP_SHARED, file_, 0);
    expect(address != MAP_FAILED, "no file of rings");
    memory_ = static_cast<RingMemory*>(address);
    memory_->header = {kMagic, kLayoutHash, sizeof(RingMemory), cfg::kRings, {}};
    for (Ring& ring : memory_->rings) ring.control.epoch = UINT32_MAX - 3;
  }
  ~RingFile() {
    munmap(memory_, sizeof(RingMemory));
    close(file_);
    ::unlink(path_.c_str());
  }
  RingFile(const RingFile&) = delete;
  RingFile& operator=(const RingFile&) = delete;

  RingMemory& memory() { return *memory_; }
  int file() const { return file_; }
  Frontend* claim(int ring) {
    char error[256] = {};
    void* handle = dp_ring_open(path_.c_str(), static_cast<uint32_t>(ring), error, sizeof error);
    expect(handle != nullptr, error);
    const std::unique_ptr<Frontend> own(&frontend_of(handle));
    munmap(&own->memory, sizeof own->memory);
    return new Frontend{own->file, *memory_, memory_->rings[ring], own->epoch};
  }
  // Its locks go, and not a word is written.
  static void die(Frontend* frontend) {
    close(frontend->file);
    delete frontend;
  }
  static void release(Frontend* frontend) {
    next_epoch(frontend->ring.control, false);
    wake(frontend->memory);
    die(frontend);
  }

 private:
  std::string path_;
  int file_;
  RingMemory* memory_;
};

}  // namespace dp
