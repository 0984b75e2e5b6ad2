// An engine over the toy model with a frontend a ring, all in one thread, so that a run repeats: what happens follows
// from a source of choices. Requests arrive in bursts, some of them with a common beginning; they are aborted, or
// finished by their frontend; frontends stall, some for as good as ever, close their ring, die without a word, and
// write nonsense. An engine with one lane parks whenever it may.
#pragma once
#include <unordered_map>
#include <vector>

#include "ring_file.hpp"
#include "toy.hpp"

namespace dp {

struct Asked {
  int ring;
  uint32_t index;
  uint64_t since;  // look of its arrival
  std::vector<int32_t> prompt;
  std::vector<int32_t> foretold;  // what the model says of the prompt's tokens from the second on, if it is to
  std::vector<int32_t> tokens;    // that it ends with if nothing ends it before
  Finish finish;
  size_t scored = 0, read = 0;
  bool aborted = false, enough = false, spoiled = false, sparse = false;
};

struct Tally {
  uint64_t steps, slow_steps, ended, scored, wraps, laps, stalls, closed, killed, longest_wait, parks, sparse;
};

// `Source::draw(n)` is a choice from 0 to n - 1, `Source::more()` whether there are any left.
template <class Source, class Schedule>
class World {
 public:
  // Looks of the scheduler that a request waits at most while its frontend does not stall for ever, whatever others do.
  static constexpr uint64_t kLongestWait = 3000 * kLaneCount * most(1, cfg::kMaxContext / 96), kForEver = 2 * kLongestWait;

  World(Source& source, Schedule schedule) : source_(source), schedule_(schedule) {
    for (int r = 0; r < cfg::kRings; ++r) ends_[r].frontend = file_.claim(r);
    step_all();
    for (int r = 0; r < cfg::kRings; ++r) near_the_end(r);
    for (uint64_t t = 0; t < 3; ++t) texts_[t] = text(t, cfg::kMaxContext);
  }
  ~World() {
    for (End& end : ends_) RingFile::release(end.frontend);
    dp_engine_destroy(engine_);
  }
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  // Steps with something to run until there are `steps`, or the source has no more, then until all is done.
  void play(uint64_t steps) {
    while (tally.steps < steps && source_.more()) {
      act();
      step(kLaneCount == 1 ? 0 : static_cast<int>(draw(kLaneCount)));
      for (int r = 0; r < cfg::kRings; ++r) listen(r);
    }
    for (End& end : ends_) wake(end);
    for (uint64_t i = 0; !asked_.empty(); ++i) {
      step(static_cast<int>(i % kLaneCount));
      for (int r = 0; r < cfg::kRings; ++r) read(r);
      expect(i < 2 * kLongestWait, "a request does not end");
    }
    for (int i = 0; kOffload && state().recall->draining > 0; ++i) {
      expect(i < 100'000, "a row that has left drains for ever");
      step_all();
    }
    step_all();
    expect(at_rest(state()), "something is held at rest");
  }

  State& state() { return *engine_of(engine_).state; }
  uint64_t trace() const { return toy_.trace; }
  const SlowToy* slow() { return toy_.slow(); }
  Tally tally = {};

 private:
  struct End {
    Frontend* frontend;
    uint64_t stalled = 0;  // looks for which it does not read
    uint64_t awake = 0;    // the look at which it last woke after having stalled for ever
    bool for_ever = false;
  };

  uint32_t draw(uint32_t n) { return source_.draw(n); }
  bool one_in(uint32_t n) { return draw(n) == 0; }

  void act() {
    if (one_in(3)) {
      for (uint32_t burst = one_in(4) ? 6 : 1; burst > 0; --burst) submit();
    }
    if (!one_in(8)) return;
    const uint32_t what = draw(64);
    if (what < 48) return end_some();
    if (what < 58) return spoil();
    const int r = static_cast<int>(draw(cfg::kRings));
    // Whoever waits for a ring that stalls has nothing else to end the wait.
    for (const End& end : ends_) {
      if (end.for_ever) return;
    }
    what < 62 ? leave(r) : die(r);
  }

  static std::vector<int32_t> text(uint64_t seed, int length) {
    std::vector<int32_t> tokens;
    for (int i = 0; i < length; ++i) {
      tokens.push_back(static_cast<int32_t>(mix(seed << 32 | static_cast<uint64_t>(i)) % cfg::kVocab));
    }
    return tokens;
  }

  void submit() {
    const int r = static_cast<int>(draw(cfg::kRings));
    const int length =
        1 + static_cast<int>(draw(one_in(2) ? cfg::kMaxContext : least(3 * cfg::kPageSize, cfg::kMaxContext)));
    const auto& common = texts_[draw(3)];
    const int shared = one_in(3) ? 0 : static_cast<int>(draw(static_cast<uint32_t>(length) + 1));
    std::vector<int32_t> words(common.begin(), common.begin() + shared);
    const auto own = text(3 + draw(256), length - shared);
    words.insert(words.end(), own.begin(), own.end());
    const int room = cfg::kMaxContext - length;
    const int count = one_in(2) ? room : least(room, static_cast<int>(draw(20)));
    Spoken spoken(words, count);
    Asked request = {r, 0, looks_, words, {}, std::move(spoken.after), Finish::kLength};
    if (length + least(count, 1) > kLongestHistory) {
      request.finish = Finish::kError, request.tokens.clear();
    } else if (length + count > kLongestHistory) {
      request.tokens.resize(static_cast<size_t>(kLongestHistory - length));
    }
    RequestParams params = {};
    if (kOffload) params.sparse = draw(2);
    request.sparse = params.sparse != 0;
    if (one_in(3)) {
      params.prompt_logprobs = 1 + draw(2);
      if (request.finish != Finish::kError) request.foretold = std::move(spoken.within);
    }
    params.prompt_tokens = static_cast<uint32_t>(length);
    params.max_tokens = static_cast<uint32_t>(count);
    params.priority = draw(3);
    params.top_p = params.temperature = params.repetition_penalty = 1.0f;
    if (one_in(3) && !request.tokens.empty()) {
      const int32_t stop = request.tokens[draw(static_cast<uint32_t>(request.tokens.size()))];
      params.stop_count = 1;
      words.insert(words.begin(), stop);
      size_t first = 0;
      while (request.tokens[first] != stop) ++first;
      request.tokens.resize(first + 1);
      request.finish = Finish::kStop;
    }
    char error[256] = {};
    Frontend& frontend = *ends_[r].frontend;
    request.index = frontend.submitted;
    const int result = dp_ring_submit(&frontend, ++tag_, &params, words.data(), error, sizeof error);
    expect(result >= 0, error);
    if (result == 0) return;
    tally.wraps += request.index > 0 && request.index % cfg::kRequestSlots == 0 ? 1 : 0;
    tally.laps += frontend.submitted == 0 ? 1 : 0;
    order_.push_back(tag_);
    asked_.emplace(tag_, std::move(request));
  }

  // Aborts a request or says that it is enough.
  void end_some() {
    Asked* request = some();
    if (request == nullptr) return;
    const bool enough = one_in(2);
    if (dp_ring_end(ends_[request->ring].frontend, request->index, enough ? 1 : 0) == 0) return;
    (enough ? request->enough : request->aborted) = true;
  }

  // A request still in its ring, or in the arena, becomes nonsense.
  void spoil() {
    Asked* request = some();
    if (request == nullptr || request->spoiled) return;
    Ring& ring = ends_[request->ring].frontend->ring;
    if (request->index - observe(ring.control.submit_read) >= cfg::kRequestSlots) return;
    request->spoiled = true;
    SubmitRecord& record = ring.submits[request->index % cfg::kRequestSlots];
    const uint32_t value = one_in(2) ? draw(256) : UINT32_MAX - draw(256);
    if (one_in(8)) {
      (one_in(2) ? record.arena_words : record.arena_begin) = value;
    } else {
      ring.arena[record.arena_begin + draw(record.arena_words)] = value;
    }
  }

  // One that may be ended or spoilt. Every third is left alone, so that nothing but its turn ends its wait.
  Asked* some() {
    if (order_.empty()) return nullptr;
    const auto found = asked_.find(order_[draw(static_cast<uint32_t>(least<size_t>(order_.size(), 256)))]);
    return found == asked_.end() || found->first % 3 == 0 ? nullptr : &found->second;
  }

  void leave(int r) {
    RingFile::release(ends_[r].frontend);
    claim(r);
    ++tally.closed;
  }

  // Whether or not the engine has found it dead, another takes its place.
  void die(int r) {
    RingFile::die(ends_[r].frontend);
    if (one_in(2)) bury(r);
    claim(r);
    ++tally.killed;
  }

  void bury(int r) {
    end_dead_claims(file_.memory(), file_.file());
    step_all();
    for (int other = 0; other < cfg::kRings; ++other) {
      const RingState& ring = state().rings[other];
      expect(is_open(ring.epoch) == (other != r), "a living frontend is taken for dead, or a dead one for living");
      expect(other != r || ring.requests == 0, "a dead frontend's requests live on");
    }
  }

  void claim(int r) {
    ends_[r] = {file_.claim(r)};
    std::erase_if(asked_, [&](const auto& entry) { return entry.second.ring == r; });
    std::erase_if(order_, [&](uint64_t tag) { return !asked_.contains(tag); });
    if (!one_in(2)) return;
    step_all();
    near_the_end(r);
  }

  // Lets both sides of an epoch that has just begun count on from shortly before 2^32.
  void near_the_end(int r) {
    constexpr uint32_t kFrom = UINT32_MAX - 2 * cfg::kRequestSlots;
    Frontend& frontend = *ends_[r].frontend;
    RingState& ring = state().rings[r];
    RingControl& control = frontend.ring.control;
    frontend.submitted = frontend.freed = frontend.aborted = frontend.token_read = kFrom;
    ring.submit_read = ring.abort_read = ring.token_written = ring.announced = ring.token_read = kFrom;
    control.submit_read = control.abort_read = control.token_read = kFrom;
  }

  // The lane's step has been under way since it was laid out, while other lanes stepped.
  void step(int lane) {
    if (file_.memory().doorbell.parked != 0) {
      expect(!work_waits(state(), file_.memory()), "an engine that has parked is not woken");
      return look();
    }
    StepBuffers* lanes = engine_of(engine_).lanes.get();
    StepBuffers& b = lanes[lane];
    if (b.rows > 0) toy_.run(b);
    if (kOffload) {
      toy_.slow()->dawdle(2 + draw(16));
      toy_.slow()->measure(1'000 + draw(20'000), draw(8) == 0 ? draw(20'000) : 0);
    }
    schedule_(state(), b, file_.memory());
    if (const char* wrong = broken(state(), lanes)) fault(wrong);
    for (int r = 0; r < cfg::kRings; ++r) {
      const RingState& ring = state().rings[r];
      const RingControl& control = file_.memory().rings[r].control;
      const bool current = is_open(ring.epoch) && ring.epoch == control.epoch;
      const bool lost = current && ring.token_written - control.token_read > cfg::kTokenSlots;
      expect(!lost, "a record is overwritten before it is read");
    }
    look();
    if (kLaneCount == 1 && b.rows == 0 && park(state(), file_.memory())) ++tally.parks;
    if (b.rows == 0) return;
    ++tally.steps;
    tally.slow_steps += static_cast<Lane>(b.lane) == Lane::kSlow ? 1 : 0;
  }

  void step_all() {
    for (int lane = 0; lane < kLaneCount; ++lane) step(lane);
  }

  void look() {
    if (++looks_ % 256 == 0) expect_patience();
  }

  uint64_t waited(const Asked& request) const { return looks_ - most(request.since, ends_[request.ring].awake); }

  void expect_patience() const {
    for (const auto& [tag, request] : asked_) {
      expect(ends_[request.ring].for_ever || waited(request) < kLongestWait, "a request waits for ever");
    }
  }

  void listen(int r) {
    End& end = ends_[r];
    if (end.stalled > 0) {
      if (--end.stalled == 0) wake(end);
      return;
    }
    if (one_in(64)) stall(end, draw(200));
    if (!one_in(5)) read(r);
  }

  void stall(End& end, uint32_t looks) {
    end.for_ever = looks == 199;
    end.stalled = end.for_ever ? kForEver : looks;
    tally.stalls += end.for_ever ? 1 : 0;
  }

  void wake(End& end) {
    if (end.for_ever) end.awake = looks_;
    end.for_ever = false;
    end.stalled = 0;
  }

  void read(int r) {
    TokenRecord records[cfg::kTokenSlots];
    TopLogprobs tops[cfg::kTokenSlots];
    const uint32_t before = ends_[r].frontend->token_read;
    const int n = dp_ring_wait(ends_[r].frontend, records, tops, cfg::kTokenSlots, 0);
    const uint32_t after = ends_[r].frontend->token_read;
    tally.wraps += (after - before + before % cfg::kTokenSlots) / cfg::kTokenSlots;
    tally.laps += after < before ? 1 : 0;
    for (int i = 0; i < n; ++i) take(r, records[i], tops[i]);
  }

  void take(int r, const TokenRecord& record, const TopLogprobs& top) {
    const auto found = asked_.find(record.tag);
    expect(found != asked_.end() && found->second.ring == r, "an event of no request, or after its end");
    Asked& request = found->second;
    const auto finish = static_cast<Finish>(record.finish);
    if (!request.spoiled) record.of_prompt != 0 ? check_score(request, record, top) : check(request, record, finish);
    if (finish == Finish::kNone) return;
    tally.longest_wait = most(tally.longest_wait, waited(request));
    ++tally.ended;
    asked_.erase(found);
    std::erase(order_, record.tag);
  }

  void check_score(Asked& request, const TokenRecord& record, const TopLogprobs& top) {
    expect(record.index == request.scored + 1 && request.read == 0, "a logprob of the prompt is lost or doubled");
    expect(request.scored < request.foretold.size(), "a logprob that nobody asked for");
    expect(record.token == request.prompt[record.index], "a token is not the prompt's");
    const int32_t foretold = request.foretold[request.scored++];
    expect(record.logprob == static_cast<float>(foretold), "a logprob differs from the oracle's");
    expect(record.top_count == 0 || top.token[0] == foretold, "a top differs from the oracle's");
    expect(record.finish == 0 && record.cached_tokens == 0, "a logprob of the prompt ends a request");
    ++tally.scored;
  }

  void check(Asked& request, const TokenRecord& record, Finish finish) {
    expect(record.index == request.read, "an event is lost or doubled");
    expect(record.cached_tokens < request.prompt.size(), "no token was computed");
    if (record.token != kNone) {
      expect(request.scored == request.foretold.size(), "a token comes before the logprobs of its prompt");
      expect(request.read < request.tokens.size(), "more tokens than were asked for");
      expect(request.tokens[request.read++] == record.token, "a token differs from the oracle's");
    }
    expect(record.sparse_tokens <= (request.sparse ? request.read : 0), "tokens are called sparse that are not");
    tally.sparse += finish != Finish::kNone ? record.sparse_tokens : 0;
    const bool whole = request.read == request.tokens.size();
    if (finish == Finish::kNone) return expect(!whole, "the last token does not end its request");
    if (finish == request.finish && whole && request.scored == request.foretold.size()) return;
    expect(record.token == kNone, "a request ended early, by itself");
    expect(finish == Finish::kAbort ? request.aborted : finish == Finish::kStop && request.enough, "a wrong reason");
  }

  RingFile file_;
  Source& source_;
  Schedule schedule_;
  void* engine_ = dp_engine_create(&file_.memory(), cfg::kVocab, 1);
  Toy toy_{state()};
  End ends_[cfg::kRings];
  std::vector<int32_t> texts_[3];
  std::unordered_map<uint64_t, Asked> asked_;
  std::vector<uint64_t> order_;  // tags by arrival
  uint64_t tag_ = 0, looks_ = 0;
};

}  // namespace dp
