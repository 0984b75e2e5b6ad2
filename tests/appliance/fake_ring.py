"""An engine's end of a ring, played from a script: same interface as FrontendRing, no engine and no shared memory."""

import itertools
import math
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from dualpace.engine.ring import Finish, SamplingParams, Status, TokenEvent

Play = Callable[[Sequence[int], SamplingParams], Iterator[int]]


def echo(prompt: Sequence[int], params: SamplingParams) -> Iterator[int]:
    """The prompt's tokens, over and over: the reply to a text is that text."""
    return itertools.cycle(prompt)


def mix(vocab: int) -> Play:
    """Tokens that depend on prompt and seed alone."""

    def play(prompt: Sequence[int], params: SamplingParams) -> Iterator[int]:
        seed = params.seed if params.temperature else 0
        state = hash((tuple(prompt), seed)) % 2**32
        while True:
            state = (state * 1664525 + 1013904223) % 2**32
            yield state * vocab >> 32

    return play


@dataclass
class _Running:
    prompt: list[int]
    params: SamplingParams
    tokens: Iterator[int]
    count: int = 0
    scored: int = 1


@dataclass
class FakeRing:
    """One token of every request a step. `held` stops the steps, `stalled` the heartbeat too, `full` refuses all."""

    play: Play = echo
    cached_tokens: int = 0
    step_s: float = 0.0
    full: bool = False
    held: bool = False
    stalled: bool = False
    ready: bool = True
    alive: bool = True
    fail_with: Finish | None = None
    submitted: list[tuple[list[int], SamplingParams]] = field(default_factory=list)
    aborted: list[int] = field(default_factory=list)
    finished: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._running: dict[int, _Running] = {}
        self._ended: list[TokenEvent] = []
        self._changed = threading.Condition()
        self._heartbeat = 0
        self.closed = False

    def submit(self, tag: int, prompt: Sequence[int], params: SamplingParams) -> bool:
        with self._changed:
            if self.full:
                return False
            self.submitted.append((list(prompt), params))
            self._running[tag] = _Running(list(prompt), params, self.play(prompt, params))
            self._changed.notify_all()
        return True

    def abort(self, tag: int) -> bool:
        return self._end(tag, self.aborted, Finish.ABORT)

    def finish(self, tag: int) -> bool:
        return self._end(tag, self.finished, Finish.STOP)

    def _end(self, tag: int, told: list[int], finish: Finish) -> bool:
        with self._changed:
            if self.full:
                return False
            told.append(tag)
            if self._running.pop(tag, None):
                self._ended.append(TokenEvent(tag, 0, -1, 0.0, finish, 0, 0))
            self._changed.notify_all()
        return True

    def hold(self, held: bool) -> None:
        with self._changed:
            self.held = held
            self._changed.notify_all()

    def wait(self, timeout_s: float) -> list[TokenEvent]:
        with self._changed:
            self._changed.wait_for(lambda: self._ended or (self._running and not self.held), timeout_s)
            events, self._ended = self._ended, []
            if not self.held:
                events += [self._step(tag, running) for tag, running in list(self._running.items())]
            if self.step_s and events:
                self._changed.wait(self.step_s)
            return events

    def _step(self, tag: int, running: _Running) -> TokenEvent:
        if running.params.prompt_logprobs is not None and running.scored < len(running.prompt):
            return self._score(tag, running)
        if running.params.max_tokens == 0:
            del self._running[tag]
            return TokenEvent(tag, 0, -1, 0.0, Finish.LENGTH, len(running.prompt), 0)
        token = next(running.tokens)
        running.count += 1
        finish = Finish.NONE
        if self.fail_with is not None:
            token, finish = -1, self.fail_with
        elif token in running.params.stop_tokens and running.count > running.params.min_tokens:
            finish = Finish.STOP
        elif running.count == running.params.max_tokens:
            finish = Finish.LENGTH
        if finish:
            del self._running[tag]
        logprob, top = 0.0, ()
        if running.params.logprobs is not None:
            # The rarer the later; each token is the second most probable one, and the last cannot come.
            logprob = -running.count / 8
            top = ((token + 1, logprob + 0.0625), (token, logprob), (token + 2, -math.inf))[: running.params.logprobs]
        return TokenEvent(
            tag,
            running.count - 1,
            token,
            logprob,
            finish,
            len(running.prompt),
            min(self.cached_tokens, len(running.prompt)),
            top,
        )

    def _score(self, tag: int, running: _Running) -> TokenEvent:
        """The next token of the prompt: the most probable one, but every third cannot come."""
        place, token = running.scored, running.prompt[running.scored]
        running.scored += 1
        logprob = -math.inf if place % 3 == 0 else -place / 8
        top = ((token, logprob), (token + 1, logprob - 1))[: running.params.prompt_logprobs]
        return TokenEvent(tag, place, token, logprob, Finish.NONE, len(running.prompt), 0, top, of_prompt=True)

    @property
    def running(self) -> int:
        return len(self._running)

    def status(self) -> Status:
        if not self.stalled:
            self._heartbeat += 1
        values = dict.fromkeys(Status._fields, 0) | {
            "heartbeat": self._heartbeat,
            "ready": self.ready,
            "stopped": False,
            "alive": self.alive,
        }
        return Status(**values)

    def close(self) -> None:
        self.closed = True
