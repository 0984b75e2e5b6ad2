"""When the tokens of a choice came: what TTFT, TPOT and ITL are made of."""

import time

from dualpace.appliance.tally import (
    CACHED_TOKENS,
    DECODE,
    DURATION,
    GENERATED_LENGTH,
    GENERATED_TOKENS,
    ITL,
    PROMPT_LENGTH,
    PROMPT_TOKENS,
    TPOT,
    TTFT,
    Tally,
)
from dualpace.engine.ring import Finish, TokenEvent

clock = time.monotonic


class Pace:
    """The times of one choice, in seconds of `clock`, from the arrival of its request on."""

    __slots__ = ("_arrived", "_first", "_last", "_observe_itl", "_tally", "_tokens")

    def __init__(self, tally: Tally, arrived: float) -> None:
        self._tally = tally
        self._observe_itl = tally.observer(ITL)
        self._arrived = arrived
        self._first = self._last = 0.0
        self._tokens = 0

    def go_on(self, now: float) -> None:
        """Count a token that came at `now`, other than the first and the last, but for the total of tokens."""
        self._observe_itl(now - self._last)
        self._last = now
        self._tokens += 1

    def skip(self, tokens: int, last: float) -> None:
        """Go on past tokens that were counted elsewhere, the last of which came at `last`."""
        self._last = last
        self._tokens += tokens

    def take(self, event: TokenEvent, now: float) -> None:
        """Count an event of the choice that came at `now`."""
        if event.token >= 0 and not event.of_prompt:
            self._take_token(event, now)
        if event.finish and event.finish in (Finish.STOP, Finish.LENGTH):
            self._end(event, now)

    def _take_token(self, event: TokenEvent, now: float) -> None:
        tally = self._tally
        tally.add(GENERATED_TOKENS)
        if self._tokens:
            self.go_on(now)
            return
        self._begin(event)
        self._first = self._last = now
        self._tokens = 1
        tally.observe(TTFT, now - self._arrived)

    def _begin(self, event: TokenEvent) -> None:
        self._tally.add(PROMPT_TOKENS, event.prompt_tokens)
        self._tally.add(CACHED_TOKENS, event.cached_tokens)
        self._tally.observe(PROMPT_LENGTH, event.prompt_tokens)

    def _end(self, event: TokenEvent, now: float) -> None:
        tally = self._tally
        if self._tokens == 0 and event.finish is Finish.LENGTH:  # a prompt that was computed and no more
            self._begin(event)
        tally.observe(DURATION, now - self._arrived)
        tally.observe(GENERATED_LENGTH, self._tokens)
        if self._tokens > 0:
            tally.observe(DECODE, self._last - self._first)
        if self._tokens > 1:
            tally.observe(TPOT, (self._last - self._first) / (self._tokens - 1))
