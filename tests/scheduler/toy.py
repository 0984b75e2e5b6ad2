"""A model whose next token is a hash of all it can see, read from paged KV through the step buffers alone.

Whatever goes wrong with pages, slots, tables, positions, windows or history changes the text, so a run is right if
every request's text is the one that `continuation` computes from its prompt.
"""

import random
import zlib
from dataclasses import dataclass, field

import numpy as np

from dualpace.engine.memory import RingMemory
from dualpace.engine.ring import Finish, FrontendRing, SamplingParams
from dualpace.plan.structs import StepKind

from .engines import ProbedScheduler
from .plans import VOCAB

_MASK = (1 << 32) - 1


def _mix(token, position, group):
    """What a position leaves in the KV of a group; works on numbers and on arrays."""
    x = token * 2654435761 + position * 40503 + group * 97 + 1
    x = (x ^ (x >> 15)) * 2246822519 & _MASK
    return x ^ (x >> 13)


def _next(sums):
    total = 0
    for value in sums:
        total = (total * 31 + int(value)) & _MASK
    return _mix(total & 0xFFFF, total >> 16, 7) % VOCAB


def continuation(plan, prompt, params):
    """The tokens that follow `prompt` and why they end, without any paging."""
    tokens = list(prompt)
    windows = [group.window or len(prompt) + params.max_tokens for group in plan.model.groups]
    sums = [
        sum(_mix(token, p, g) for p, token in enumerate(prompt) if p >= len(prompt) - w) for g, w in enumerate(windows)
    ]
    for generated in range(1, params.max_tokens + 1):
        last = _next(total & _MASK for total in sums)
        if last in params.stop_tokens and generated > params.min_tokens:
            return [*tokens[len(prompt) :], last], Finish.STOP
        for g, window in enumerate(windows):
            sums[g] += _mix(last, len(tokens), g)
            gone = len(tokens) - window
            sums[g] -= _mix(tokens[gone], gone, g) if gone >= 0 else 0
        tokens.append(last)
    return tokens[len(prompt) :], Finish.LENGTH


def foretold(plan, prompt):
    """What the model says in the place of each of the prompt's tokens from the second on."""
    return [continuation(plan, prompt[:length], SamplingParams(1))[0][0] for length in range(1, len(prompt))]


class ToyModel:
    """The forward pass: writes each token's value at its slot, reads what each sample sees through its row's tables.

    As its logprob a sample has the token that the model says in its place, and that one is its most probable.
    """

    def __init__(self, plan):
        self.windows = [group.window for group in plan.model.groups]
        self.page_size = plan.attention.page_size
        self.kv = [np.full(pages.pages * self.page_size, -1, dtype=np.int64) for pages in plan.pages]

    def run(self, step, b):
        """Fills `sampled`; returns a digest of the step."""
        tokens, begin = step.tokens, b["query_begin"][: step.rows + 1]
        assert begin[0] == 0
        assert begin[-1] == tokens
        assert (np.diff(begin) > 0).all()
        token, position, row = (b[name][:tokens].astype(np.int64) for name in ("token", "position", "token_row"))
        assert (row == np.repeat(np.arange(step.rows), np.diff(begin))).all()
        assert (position == b["context"][row] - begin[row + 1] + np.arange(tokens)).all()
        slots = b["row_slot"][: step.rows]
        for g, kv in enumerate(self.kv):
            slot = b["slot"][g, :tokens]
            assert len(set(slot.tolist())) == tokens
            pages = b["table"][g, slots[row], position // self.page_size]
            assert (pages >= 0).all()
            assert (slot == pages * self.page_size + position % self.page_size).all()
            kv[slot] = _mix(token, position, g)
        for i in range(step.samples):
            at = int(b["sample_index"][i])
            r = int(np.searchsorted(begin, at, side="right")) - 1
            assert b["sample_slot"][i] == slots[r]
            assert i < step.scored or at == begin[r + 1] - 1
            said = _next(self._seen(b, r, g, int(position[at]) + 1) for g in range(len(self.kv)))
            b["sampled"][i] = b["logprob"][i] = b["top"][i]["token"][0] = said
        used = [b[n][:tokens] for n in ("token", "position", "token_row")] + [slots, begin, b["context"][: step.rows]]
        used += [b["slot"][:, :tokens], b["sample_index"][: step.samples], b["table"][:, slots]]
        return zlib.crc32(b"".join(array.tobytes() for array in used), step.tokens)

    def _seen(self, b, r, g, context):
        window = self.windows[g]
        positions = np.arange(max(0, context - window) if window else 0, context)
        pages = b["table"][g, b["row_slot"][r], positions // self.page_size]
        assert (pages >= 0).all()
        return int(self.kv[g][pages * self.page_size + positions % self.page_size].sum()) & _MASK


@dataclass
class Request:
    ring: int
    prompt: list[int]
    params: SamplingParams
    aborted: bool = False
    scores: list[int] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    finish: Finish = Finish.NONE
    cached: int = 0
    enough: bool = False  # its frontend has said so

    def take(self, event):
        assert self.finish is Finish.NONE, "an event after the end"
        assert event.prompt_tokens == len(self.prompt) or event.finish is Finish.ERROR
        if event.of_prompt:
            assert (event.index, event.token) == (len(self.scores) + 1, self.prompt[event.index])
            assert [token for token, _ in event.top] == [int(event.logprob)] * self.params.prompt_logprobs
            assert (event.finish, self.tokens) == (Finish.NONE, [])
            self.scores.append(int(event.logprob))
            return
        assert event.index == len(self.tokens)
        if event.token >= 0:
            self.tokens.append(event.token)
        self.finish = event.finish
        self.cached = event.cached_tokens


class Toy:
    """An engine over the toy model and one frontend a ring, in one thread, so that a run repeats."""

    def __init__(self, plan, libraries, path, members=1):
        self.plan = plan
        self.memory = RingMemory(path, plan)
        self.scheduler = ProbedScheduler(libraries.engine, self.memory, plan, members=members)
        self.libraries = libraries
        self.rings = [self.claim(r) for r in range(plan.rings.rings)]
        self.model = ToyModel(plan)
        self.requests = {}
        self.submitted = 0
        self.trace = []

    def claim(self, ring):
        """The ring, for its frontend."""
        return FrontendRing(self.libraries.ring, self.memory.path, ring)

    def close(self):
        for ring in self.rings:
            ring.close()
        self.scheduler.close()
        self.memory.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def submit(self, prompt, params, ring=0):
        """The request, or None if the ring has no room."""
        tag = self.submitted
        if not self.rings[ring].submit(tag, prompt, params):
            return None
        self.submitted += 1
        self.requests[tag] = Request(ring, list(prompt), params)
        return self.requests[tag]

    def abort(self, request):
        request.aborted |= self.rings[request.ring].abort(self._tag(request))

    def finish(self, request):
        request.enough |= self.rings[request.ring].finish(self._tag(request))

    def _tag(self, request):
        return next(tag for tag, other in self.requests.items() if other is request)

    def step(self):
        step = self.scheduler.schedule()
        if step.kind is not StepKind.IDLE:
            self.trace.append(self.model.run(step, self.scheduler.buffers))
        return step

    def read(self, ring=0):
        for event in self.rings[ring].wait(0):
            self.requests[event.tag].take(event)

    def drain(self, limit=5000):
        """Steps until nothing is left to do."""
        for _ in range(limit):
            self.step()
            for ring in range(len(self.rings)):
                self.read(ring)
            if all(request.finish for request in self.requests.values()):
                break
        self.step()

    def check(self):
        """Every request ended once, with the text it should have; nothing is held any more."""
        for request in self.requests.values():
            tokens, finish = continuation(self.plan, request.prompt, request.params)
            scores = [] if request.params.prompt_logprobs is None else foretold(self.plan, request.prompt)
            if request.finish is Finish.ABORT or (request.enough and request.finish is Finish.STOP):
                assert request.aborted or request.enough
                assert request.tokens == tokens[: len(request.tokens)]
                assert request.scores == scores[: len(request.scores)]
            else:
                assert (request.finish, request.tokens, request.scores) == (finish, tokens, scores)
        assert self.scheduler.at_rest()


def random_run(toy, seed, steps):
    """Arrivals in bursts, stops, aborts and readers that stall, all from `seed`."""
    rng = random.Random(seed)
    stalled = [0] * len(toy.rings)
    texts = [[rng.randrange(VOCAB) for _ in range(60)] for _ in range(3)]
    for _ in range(steps):
        if rng.random() < 0.3:
            for _ in range(rng.choice((1, 1, 2, 6))):
                # Half the prompts go on from one of three texts, so that prefixes are shared, to all lengths.
                length = rng.choice((1, 2, 7, 8, 9, 16, 17, 40, 60))
                shared = texts[rng.randrange(3)][: rng.choice((0, length, length, length * 2 // 3))]
                prompt = shared + [rng.randrange(VOCAB) for _ in range(length - len(shared))]
                longest = toy.plan.schedule.max_context - len(prompt)
                params = SamplingParams(
                    max_tokens=(most := min(longest, rng.choice((0, 1, 2, 9, 30, 90)))),
                    min_tokens=min(most, rng.choice((0, 0, 1))),
                    prompt_logprobs=rng.choice((None, None, 0, 1)),
                    stop_tokens=tuple(rng.sample(range(VOCAB), rng.choice((0, 1, 3)))),
                    priority=rng.choice((0, 0, 1, 255)),
                )
                toy.submit(prompt, params, rng.randrange(len(toy.rings)))
        running = [request for request in toy.requests.values() if not request.finish and not request.aborted]
        if running and rng.random() < 0.1:
            rng.choice((toy.abort, toy.finish))(rng.choice(running))
        toy.step()
        for ring in range(len(toy.rings)):
            if rng.random() < 0.02:
                stalled[ring] = rng.randrange(30)
            if stalled[ring]:
                stalled[ring] -= 1
            elif rng.random() < 0.8:
                toy.read(ring)
    toy.drain()
