// A frontend without Python: submits one request through the ring library and prints what comes back, a record a line.
#include <cstdio>
#include <cstdlib>

#include "host/ring.cpp"

int main(int, char** arguments) {
  char error[256] = {};
  void* ring = dp_ring_open(arguments[1], static_cast<uint32_t>(std::atoi(arguments[2])), error, sizeof error);
  if (ring == nullptr) return std::fprintf(stderr, "%s\n", error);
  dp::RequestParams params = {};
  params.prompt_tokens = 5;
  params.stop_count = 1;
  params.bias_count = 2;
  params.max_tokens = 30;
  params.top_p = 1.0f;
  params.repetition_penalty = 1.0f;
  const int32_t half = 0x3F000000;  // 0.5f
  const int32_t words[] = {3, /* biases */ 7, 9, half, half, /* prompt */ 5, 17, 60, 2, 44};
  if (dp_ring_submit(ring, 77, &params, words, error, sizeof error) != 1) return std::fprintf(stderr, "%s\n", error);
  dp::TokenRecord records[4];
  dp::TopLogprobs tops[4];
  for (bool ended = false; !ended;) {
    const int count = dp_ring_wait(ring, records, tops, 4, 1000);
    for (int i = 0; i < count; ++i) {
      const dp::TokenRecord& r = records[i];
      std::printf("%llu %u %d %u %u\n", static_cast<unsigned long long>(r.tag), r.index, r.token, r.finish,
                  r.prompt_tokens);
      ended = r.finish != 0;
    }
  }
  dp_ring_close(ring);
  return 0;
}
