// The frontend's end of a ring, as a library, and what the engine's process does about frontends that have died. One
// thread may submit and abort while another waits for tokens.
#include "common/ring.hpp"

#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdarg>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <memory>

#include "common/exact.hpp"
#include "common/prefix_key.hpp"
#include "common/request.hpp"
#include "host/backoff.hpp"
#include "host/claim.hpp"
#include "host/doorbell.hpp"
#include "host/spouts.hpp"

namespace {

// Between two looks for tokens. Who submits ends the pause, so it is long for who waits for a long time.
constexpr int64_t kTokenPauseUs = 250'000;

struct Frontend {
  int file;
  dp::RingMemory& memory;
  dp::Ring& ring;
  uint32_t epoch;
  uint32_t submitted = 0, freed = 0, aborted = 0, token_read = 0;
  // The arena is a circle of spans in the order of their records; `used` words end before `head`.
  uint32_t head = 0, used = 0;
  uint32_t span[dp::cfg::kRequestSlots] = {};
  dp::Backoff backoff{kTokenPauseUs};
};

Frontend& frontend_of(void* handle) { return *static_cast<Frontend*>(handle); }

[[gnu::format(printf, 3, 4)]] void say(char* error, size_t bytes, const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(error, bytes, format, arguments);
  va_end(arguments);
}

// Maps the file if it is the rings of this plan. Says why not.
dp::RingMemory* map(int file, const char* path, char* error, size_t bytes) {
  struct stat about = {};
  dp::MemoryHeader header = {};
  if (fstat(file, &about) != 0 || pread(file, &header, sizeof header, 0) != sizeof header ||
      header.magic != dp::kMagic) {
    say(error, bytes, "%s: this is no file of rings; give --rings the file that the engine made", path);
    return nullptr;
  }
  if (header.layout != dp::kLayoutHash || header.bytes != sizeof(dp::RingMemory) ||
      about.st_size != static_cast<off_t>(sizeof(dp::RingMemory))) {
    say(error, bytes, "%s: layout %016llx, this bundle's is %016llx; start engine and frontend from one bundle", path,
        static_cast<unsigned long long>(header.layout), static_cast<unsigned long long>(dp::kLayoutHash));
    return nullptr;
  }
  void* address = mmap(nullptr, sizeof(dp::RingMemory), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (address != MAP_FAILED) return static_cast<dp::RingMemory*>(address);
  say(error, bytes, "%s: cannot map it: %s", path, std::strerror(errno));
  return nullptr;
}

// Begins the next epoch that is open, or closed: what the engine has of the one before it ends.
uint32_t next_epoch(dp::RingControl& control, bool open) {
  const uint32_t last = dp::observe(control.epoch);
  const uint32_t epoch = dp::is_open(last) == open ? last + 2 : last + 1;
  dp::publish(control.token_read, 0u);
  dp::publish(control.epoch, epoch);
  return epoch;
}

// The counts that the engine has read, which are 0 until it has seen this epoch.
uint32_t engine_read(const Frontend& f, const uint32_t& count) {
  return dp::observe(f.ring.control.seen_epoch) == f.epoch ? dp::observe(count) : 0;
}

// A span of the arena in one piece; false if there is none now.
bool take_span(Frontend& f, uint32_t words, uint32_t* begin) {
  for (const uint32_t read = engine_read(f, f.ring.control.submit_read); f.freed != read; ++f.freed) {
    f.used -= f.span[f.freed % dp::cfg::kRequestSlots];
  }
  if (f.submitted - f.freed == dp::cfg::kRequestSlots) return false;
  if (f.used == 0) f.head = 0;
  const bool wraps = words > dp::cfg::kArenaWords - f.head;
  const uint32_t skipped = wraps ? dp::cfg::kArenaWords - f.head : 0;
  if (skipped + words > dp::cfg::kArenaWords - f.used) return false;
  *begin = wraps ? 0 : f.head;
  f.head = *begin + words;
  f.used += skipped + words;
  f.span[f.submitted % dp::cfg::kRequestSlots] = skipped + words;
  return true;
}

// Writes the key of each page that the prompt fills, as two words.
void write_keys(const int32_t* prompt, uint32_t tokens, uint32_t* words) {
  uint64_t key = dp::kEmptyPrefix;
  for (uint32_t i = 0; i < tokens / dp::cfg::kPageSize * dp::cfg::kPageSize; ++i) {
    key = dp::extend_prefix(key, prompt[i]);
    if ((i + 1) % dp::cfg::kPageSize != 0) continue;
    *words++ = static_cast<uint32_t>(key);
    *words++ = static_cast<uint32_t>(key >> 32);
  }
}

void explain(dp::Fault fault, const dp::RequestParams& p, char* error, size_t bytes) {
  switch (fault) {
    case dp::Fault::kSound:
      return;
    case dp::Fault::kEmptyPrompt:
      return say(error, bytes, "prompt is empty; it needs at least one token");
    case dp::Fault::kContext:
      return say(error, bytes, "%u prompt tokens and max_tokens %u exceed the context of %d tokens; lower either",
                 p.prompt_tokens, p.max_tokens, dp::cfg::kMaxContext);
    case dp::Fault::kMinTokens:
      return say(error, bytes, "min_tokens is %u, more than max_tokens %u; lower it", p.min_tokens, p.max_tokens);
    case dp::Fault::kStopCount:
      return say(error, bytes, "stop_tokens has %u ids, at most %d are possible", p.stop_count, dp::kMaxStopTokens);
    case dp::Fault::kTemperature:
      return say(error, bytes, "temperature is %g; it has to be from 0 to 100", static_cast<double>(p.temperature));
    case dp::Fault::kTopK:
      return say(error, bytes, "top_k is %u; it has to be at most %d, 0 is off", p.top_k, INT32_MAX);
    case dp::Fault::kTopP:
      return say(error, bytes, "top_p is %g; it has to be above 0 and at most 1", static_cast<double>(p.top_p));
    case dp::Fault::kMinP:
      return say(error, bytes, "min_p is %g; it has to be from 0 to 1", static_cast<double>(p.min_p));
    case dp::Fault::kRepetition:
      return say(error, bytes, "repetition_penalty is %g; it has to be from %g to %g, 1 is off",
                 static_cast<double>(p.repetition_penalty), static_cast<double>(dp::kLeastRepetition),
                 static_cast<double>(1 / dp::kLeastRepetition));
    case dp::Fault::kPenalties:
      return say(error, bytes, "presence_penalty and frequency_penalty are %g and %g; they have to be from %g to %g",
                 static_cast<double>(p.presence_penalty), static_cast<double>(p.frequency_penalty),
                 static_cast<double>(-dp::kMostPenalty), static_cast<double>(dp::kMostPenalty));
    case dp::Fault::kBiasCount:
      return say(error, bytes, "logit_bias has %u ids, at most %d are possible", p.bias_count, dp::kMaxBias);
    case dp::Fault::kLogprobs:
      return say(error, bytes, "logprobs asks for the %u most probable tokens, at most %d are possible", p.logprobs - 1,
                 dp::kMaxTopLogprobs);
    case dp::Fault::kPromptLogprobs:
      return say(error, bytes, "prompt_logprobs asks for the %u most probable tokens, at most %d are possible",
                 p.prompt_logprobs - 1, dp::kMaxTopLogprobs);
    case dp::Fault::kPriority:
      return say(error, bytes, "priority is %u; it has to be from 0 to %u", p.priority, dp::kHighestPriority);
  }
}

// Whether the ids and biases of a sound request are sound too. Says why not.
bool check_words(const dp::RequestParams& p, const int32_t* words, char* error, size_t bytes) {
  const int32_t* biased = words + p.stop_count;
  const int32_t* prompt = biased + 2 * size_t{p.bias_count};
  const auto known = [&](const char* what, const int32_t* ids, uint32_t count) {
    for (uint32_t i = 0; i < count; ++i) {
      if (dp::in_vocabulary(ids[i])) continue;
      say(error, bytes, "%s holds the token id %d; ids are from 0 to %d", what, ids[i], dp::cfg::kVocab - 1);
      return false;
    }
    return true;
  };
  if (!known("stop_tokens", words, p.stop_count) || !known("logit_bias", biased, p.bias_count)) return false;
  for (int i = 0; i < static_cast<int>(p.bias_count); ++i) {
    const float bias = dp::float_of(static_cast<uint32_t>(biased[p.bias_count + static_cast<uint32_t>(i)]));
    if (dp::sound_bias(biased, i, bias)) continue;
    say(error, bytes, "logit_bias of token id %d is %g; biases are from %g to %g, an id has one at most", biased[i],
        static_cast<double>(bias), static_cast<double>(-dp::kMostBias), static_cast<double>(dp::kMostBias));
    return false;
  }
  return known("prompt", prompt, p.prompt_tokens);
}

}  // namespace

extern "C" {

// Claims a ring. Null, with `error` filled in, if that is impossible.
void* dp_ring_open(const char* path, uint32_t ring, char* error, size_t bytes) {
  if (ring >= static_cast<uint32_t>(dp::cfg::kRings)) {
    say(error, bytes, "ring %u: there are %d, numbered from 0; raise nic.rings", ring, dp::cfg::kRings);
    return nullptr;
  }
  const int file = open(path, O_RDWR | O_NOFOLLOW | O_CLOEXEC);
  if (file < 0) {
    say(error, bytes, "%s: cannot open it: %s; start the engine first", path, std::strerror(errno));
    return nullptr;
  }
  struct flock lock = dp::lock_of(dp::ring_byte(ring));
  dp::RingMemory* memory = map(file, path, error, bytes);
  if (memory != nullptr && fcntl(file, F_OFD_SETLK, &lock) != 0) {
    say(error, bytes, "%s: ring %u is in use by another frontend; give --ring another number", path, ring);
    munmap(memory, sizeof *memory);
    memory = nullptr;
  }
  if (memory == nullptr) {
    close(file);
    return nullptr;
  }
  dp::Ring& claimed = memory->rings[ring];
  const uint32_t epoch = next_epoch(claimed.control, true);
  dp::wake(*memory);
  return new Frontend{file, *memory, claimed, epoch};
}

// Gives up the ring, and what was submitted with it.
void dp_ring_close(void* handle) {
  std::unique_ptr<Frontend> frontend(&frontend_of(handle));
  next_epoch(frontend->ring.control, false);
  dp::wake(frontend->memory);
  munmap(&frontend->memory, sizeof frontend->memory);
  close(frontend->file);
}

// `words` are the stop ids, the ids with a bias in rising order, their biases' bits, the prompt. 1: submitted; 0: no
// room now; -1: refused, with `error` filled in.
int dp_ring_submit(void* handle, uint64_t tag, const dp::RequestParams* params, const int32_t* words, char* error,
                   size_t bytes) {
  Frontend& f = frontend_of(handle);
  const dp::Fault fault = dp::check(*params);
  if (fault != dp::Fault::kSound) {
    explain(fault, *params, error, bytes);
    return -1;
  }
  if (!check_words(*params, words, error, bytes)) return -1;
  const uint64_t span = dp::span_words(*params);
  if (span > dp::cfg::kArenaWords) {
    say(error, bytes, "the request takes %llu words of the arena, which has %u; shorten the prompt",
        static_cast<unsigned long long>(span), dp::cfg::kArenaWords);
    return -1;
  }
  uint32_t begin = 0;
  if (!take_span(f, static_cast<uint32_t>(span), &begin)) return 0;
  std::memcpy(&f.ring.arena[begin], params, sizeof *params);
  const uint32_t given = params->stop_count + 2 * params->bias_count + params->prompt_tokens;
  uint32_t* copy = &f.ring.arena[begin + sizeof *params / 4];
  std::memcpy(copy, words, size_t{given} * 4);
  write_keys(words + given - params->prompt_tokens, params->prompt_tokens, copy + given);
  dp::SubmitRecord& record = f.ring.submits[f.submitted % dp::cfg::kRequestSlots];
  record.type = static_cast<uint32_t>(dp::RecordType::kSubmit);
  record.arena_begin = begin;
  record.arena_words = static_cast<uint32_t>(span);
  record.tag = tag;
  dp::publish(record.flag, dp::record_flag(f.epoch, f.submitted));
  ++f.submitted;
  dp::wake(f.memory);
  f.backoff.news();
  return 1;
}

// Ends the request of the submit with that index (the first has 0), with Finish::kStop if it is `finished` and
// Finish::kAbort if not. 0: no room now.
int dp_ring_end(void* handle, uint32_t index, int finished) {
  Frontend& f = frontend_of(handle);
  if (f.aborted - engine_read(f, f.ring.control.abort_read) == dp::cfg::kRequestSlots) return 0;
  dp::AbortRecord& record = f.ring.aborts[f.aborted % dp::cfg::kRequestSlots];
  record.type = static_cast<uint32_t>(finished != 0 ? dp::RecordType::kFinish : dp::RecordType::kAbort);
  record.index = index;
  dp::publish(record.flag, dp::record_flag(f.epoch, f.aborted));
  ++f.aborted;
  dp::wake(f.memory);
  return 1;
}

// Takes up to `limit` records, with `tops` for those that have some, waiting for the first for `timeout_us`. Returns
// how many.
int dp_ring_wait(void* handle, dp::TokenRecord* records, dp::TopLogprobs* tops, int limit, int64_t timeout_us) {
  Frontend& f = frontend_of(handle);
  uint32_t count = 0;
  const auto look = [&] {
    count = dp::visible(f.ring.tokens, f.epoch, f.token_read, static_cast<uint32_t>(limit));
    return count > 0;
  };
  f.backoff.wait_until(look, timeout_us);
  for (uint32_t i = 0; i < count; ++i) {
    const uint32_t at = (f.token_read + i) % dp::cfg::kTokenSlots;
    records[i] = f.ring.tokens[at];
    if (records[i].top_count > 0) tops[i] = f.ring.tops[at];
  }
  f.token_read += count;
  if (count > 0) dp::publish(f.ring.control.token_read, f.token_read);
  return static_cast<int>(count);
}

void dp_ring_status(void* handle, dp::EngineStatus* status) {
  // Word by word, so that no count is torn; counts may be of neighbouring steps.
  const auto* shown = reinterpret_cast<const uint64_t*>(&frontend_of(handle).memory.status);
  auto* words = reinterpret_cast<uint64_t*>(status);
  for (size_t i = 0; i < sizeof *status / sizeof *words; ++i) words[i] = dp::glance(shown[i]);
}

// Whether the engine holds its lock and has not said that it stopped.
int dp_ring_engine_alive(void* handle) {
  const Frontend& f = frontend_of(handle);
  return dp::observe(f.memory.status.stopped) == 0 && dp::is_held(f.file, dp::kEngineByte) ? 1 : 0;
}

// For the process of an engine, which has mapped `file`.
void dp_ring_end_dead_claims(void* memory, int file) {
  dp::end_dead_claims(*static_cast<dp::RingMemory*>(memory), file);
}

// For it too, once nobody can write to a ring any more whose lock it holds: ends what its owner left, forgets the rest,
// and goes on from an even epoch that the owner could not foresee, so that nothing it left is taken for the next one's.
void dp_ring_turn_over(void* memory, uint32_t ring, uint32_t epoch) {
  auto& whole = *static_cast<dp::RingMemory*>(memory);
  dp::Ring& left = whole.rings[ring];
  static_assert(offsetof(dp::Ring, control) == 0 && offsetof(dp::RingControl, epoch) == 0);
  dp::publish(left.control.epoch, epoch);
  std::memset(reinterpret_cast<char*>(&left) + sizeof left.control.epoch, 0, sizeof left - sizeof left.control.epoch);
  dp::wake(whole);
}

// For it too, while its device is parked: waits for `timeout_us` to be woken. 1: it was.
int dp_ring_await_wake(void* memory, int64_t timeout_us) {
  return dp::await_wake(*static_cast<dp::RingMemory*>(memory), timeout_us) ? 1 : 0;
}

// For a frontend's event loop: see `Spouts`.
void* dp_spouts_create() { return new dp::Spouts; }

void dp_spouts_learn(void* spouts, uint32_t token, const char* text, size_t bytes) {
  static_cast<dp::Spouts*>(spouts)->learn(token, {text, bytes});
}

void dp_spouts_open(void* spouts, uint64_t tag, int socket, const char* before, size_t before_bytes, const char* after,
                    size_t after_bytes, double last) {
  static_cast<dp::Spouts*>(spouts)->open(tag, socket, {before, before_bytes}, {after, after_bytes}, last);
}

uint32_t dp_spouts_close(void* spouts, uint64_t tag, double* last) {
  return static_cast<dp::Spouts*>(spouts)->close(tag, last);
}

int dp_spouts_pour(void* spouts, const uint64_t* tags, const int32_t* tokens, size_t count, double now,
                   const double* bounds, size_t bound_count, double* gaps, int32_t* unsent) {
  return static_cast<dp::Spouts*>(spouts)->pour(tags, tokens, count, now, bounds, bound_count, gaps, unsent) ? 1 : 0;
}

}  // extern "C"
