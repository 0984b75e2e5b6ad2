// The world under libFuzzer, which chooses what happens from the bytes of its input.
#include "world.hpp"

namespace {

using namespace dp;

class Bytes {
 public:
  Bytes(const uint8_t* data, size_t size) : data_(data), end_(data + size) {}
  bool more() const { return data_ != end_; }
  // A byte a choice, two for one of many; past the end all choices are 0.
  uint32_t draw(uint32_t n) {
    uint32_t value = next();
    if (n > 256) value = value << 8 | next();
    return value % n;
  }

 private:
  uint32_t next() { return more() ? *data_++ : 0; }

  const uint8_t* data_;
  const uint8_t* end_;
};

void alone(State& s, StepBuffers& b, RingMemory& m) {
  SerialTeam team;
  schedule(team, s, b, m);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  Bytes bytes(data, size);
  World<Bytes, decltype(&alone)> world(bytes, alone);
  world.play(UINT64_MAX);
  return 0;
}
