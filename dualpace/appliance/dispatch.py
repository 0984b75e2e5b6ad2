"""Between the HTTP requests of one event loop and the engine's rings.

The event loop's thread is the only one that writes into the rings; one thread more waits for tokens, so the token ring
is drained whatever clients do, and hands them to the event loop a batch at a time.
"""

import asyncio
import itertools
import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from dualpace.appliance.errors import ApiError, failed, invalid, queue_full, unavailable
from dualpace.appliance.health import Heartbeat
from dualpace.appliance.pace import Pace, clock
from dualpace.appliance.protocol import Pipe
from dualpace.appliance.spouts import Spouts
from dualpace.appliance.tally import GENERATED_TOKENS, Tally
from dualpace.engine.ring import FrontendRing, RingError, SamplingParams, Status, TokenEvent
from dualpace.engine.traffic import Traffic
from dualpace.plan.plan import Schedule

WAIT_S = 0.25
# Requests under way wait out a stall (a slow step, a debugger) before they are given up. The ring itself ends those of
# an engine whose process is gone.
GIVE_UP_S = 30.0
# A client this many generated tokens behind is ended. Below that, what it missed reaches it in one piece.
INBOX_TOKENS = 4096

logger = logging.getLogger(__name__)


class Sink(Protocol):
    """Where tokens of a choice go about which there is nothing else to say."""

    def take(self, token: int, now: float) -> bool:
        """Take one that came at `now`, in seconds of `pace.clock`; False: it goes into the inbox as others do."""

    def skip(self, tokens: int) -> None:
        """Count so many that a spout has sent."""

    def spill(self, text: bytes, size: int) -> None:
        """Send the last bytes, that many, of a token's chunk that a spout has begun to send; `text` is in JSON."""


# See Dispatcher.open_spout, of a tag.
OpenSpout = Callable[[Pipe, tuple[bytes, bytes], int, bytes, float], None]


class Inbox:
    """The tokens of one HTTP request that its handler has not taken yet, in order, each with its choice's index.

    While the handler waits for them, `listener` is called first: it may take them, and says whether more are to come.
    `idle`: the handler waits and has taken all there were.
    """

    def __init__(self) -> None:
        self._events: list[tuple[int, TokenEvent]] = []
        self._generated = 0
        self.error: ApiError | None = None
        self.listener: Callable[[], bool] | None = None
        self.idle = False
        self._taker: asyncio.Future[None] | None = None

    @property
    def is_empty(self) -> bool:
        """Whether all has been taken."""
        return not self._events

    def put(self, choice: int, event: TokenEvent) -> bool:
        """Add a token, and `wake` later; False when the handler is too far behind, and nothing is added."""
        if self._generated >= INBOX_TOKENS:
            return False
        # A prompt's tokens come as fast as they are computed, and are as many as the prompt has.
        self._generated += not event.of_prompt
        self._events.append((choice, event))
        self.idle = False
        return True

    def wake(self) -> None:
        """Tell the handler, if it waits, of what has been put."""
        if self._taker is None or self._taker.done():
            return
        if self.listener is None or not self.listener() or self._events:
            self._end_wait()
        elif not self._taker.done():
            self.idle = True

    def fail(self, error: ApiError) -> None:
        """End the request with `error`, after what has been put."""
        self.error = self.error or error
        self._end_wait()

    def _end_wait(self) -> None:
        self.idle = False
        # One that failed may fail again.
        if self._taker is not None and not self._taker.done():
            self._taker.set_result(None)

    async def get(self) -> list[tuple[int, TokenEvent]]:
        """Wait for tokens and take all that the listener left. Raises the error that ended the request, after them."""
        if not self._events and self.error is None:
            self._taker = asyncio.get_running_loop().create_future()
            self.idle = True
            await self._taker
        if not self._events and self.error is not None:
            raise self.error
        return self.take()

    def take(self) -> list[tuple[int, TokenEvent]]:
        """Take all there are, without waiting."""
        events, self._events, self._generated = self._events, [], 0
        return events


@dataclass(slots=True)
class _Route:
    """Where a tag's tokens go; nowhere once its request is over. `queued` prompt tokens wait for its first token.

    After that one, what a `sink` takes past an inbox that is idle stays out of it.
    """

    inbox: Inbox | None
    choice: int
    queued: int
    pace: Pace
    sink: Sink | None = None


class Dispatcher:
    """Submits and aborts, and routes tokens to inboxes. All methods belong to the event loop's thread."""

    def __init__(
        self,
        ring: FrontendRing,
        schedule: Schedule,
        claim: Callable[[], FrontendRing] | None = None,
        *,
        frontends: int = 1,
        tally: Tally | None = None,
        traffic: Traffic | None = None,
        spouts: Spouts | None = None,
    ) -> None:
        """`claim` makes another ring once the engine of `ring` is gone; it raises RingError while there is none.

        `frontends` share the limits of `schedule`. `traffic` is what the rings' transport counts, over a network.
        """
        self.tally = tally or Tally()
        self.traffic = traffic
        self._spouts = spouts
        self._ring = ring
        self._schedule = schedule
        self._claim = claim
        self._frontends = frontends
        self._heartbeat = Heartbeat(ring.status)
        self._tags = itertools.count(1)
        self._routes: dict[int, _Route] = {}
        self._queued_tokens = 0
        # Of accepted requests, what the ring has had no room for yet, in order; bounded as the routes are.
        self._held: dict[int, tuple[Sequence[int], SamplingParams]] = {}
        self._ends: deque[tuple[int, Callable[[int], bool]]] = deque()
        self._closing: str | None = None
        self._stopping = threading.Event()
        self._claiming = False

    async def __aenter__(self) -> "Dispatcher":
        loop = asyncio.get_running_loop()
        self._pump = threading.Thread(target=self._wait, args=(loop,), name="token ring", daemon=True)
        self._pump.start()
        self._watch = asyncio.create_task(self._watch_engine())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._watch.cancel()
        self._stopping.set()
        # A claim may wait for an engine that says nothing. It is left alone: what it finds nobody wants any more.
        while self._pump.is_alive() and not self._claiming:
            await asyncio.to_thread(self._pump.join, WAIT_S)
        self._ring.close()

    def unavailable(self) -> str | None:
        """Why no request can be taken now, as a clause; None while one can."""
        return self._closing or self._heartbeat.unavailable()

    def hung(self) -> str | None:
        """Why no request will be taken however long one waits, as a clause; None while one may be."""
        reason = self._heartbeat.unavailable()
        return reason if self._heartbeat.status.ready and self._heartbeat.stalled_for() > GIVE_UP_S else None

    def status(self) -> Status:
        """What the engine last said of itself."""
        return self._ring.status()

    def close(self, reason: str) -> None:
        """Take no more requests."""
        self._closing = reason

    def fail_all(self, error: ApiError) -> None:
        """End every request under way with `error`."""
        for inbox in {id(r.inbox): r.inbox for r in self._routes.values()}.values():
            if inbox is not None:
                self._end(inbox, error)

    def submit(self, jobs: Sequence[tuple[Sequence[int], SamplingParams]], arrived: float) -> tuple[Inbox, list[int]]:
        """Take one prompt a choice, all or none. Returns the inbox and the choices' tags.

        `arrived` is when the request did, in seconds of `pace.clock`.

        What finds no room in the ring follows once the engine has read what is there. Raises ApiError: 503 once closed,
        429 while the engine, as last looked at, has as many requests as it may queue, 400 for what it cannot serve.
        """
        tokens = sum(len(prompt) for prompt, _ in jobs)
        if self._closing:
            raise unavailable(self._closing)
        self._check_limits(len(jobs), tokens)
        inbox = Inbox()
        tags = list(itertools.islice(self._tags, len(jobs)))
        for choice, (tag, (prompt, params)) in enumerate(zip(tags, jobs, strict=True)):
            self._routes[tag] = _Route(inbox, choice, len(prompt), Pace(self.tally, arrived))
            self._held[tag] = prompt, params
        self._queued_tokens += tokens
        self._send_held()
        if inbox.error is not None:
            raise inbox.error
        return inbox, tags

    def check_room(self) -> None:
        """Look at the engine, before a prompt is read. Raises ApiError: 503 while it is unavailable, 429 as `submit`.

        What other frontends queue shows in the engine's status.
        """
        reason = self.unavailable()
        if reason is not None:
            raise unavailable(reason)
        self._check_limits(jobs=1, tokens=0)

    def _check_limits(self, jobs: int, tokens: int) -> None:
        engine, limits = self._heartbeat.status, self._schedule

        def is_beyond(mine: int, every: int, more: int, most: int) -> bool:
            """A frontend takes its share of a limit, and beyond that what the others leave."""
            return mine + more > most or (mine + more > most // self._frontends and every + more > most)

        if is_beyond(len(self._routes), engine.running + engine.waiting, jobs, limits.max_requests):
            raise queue_full(f"this server takes {limits.max_requests} requests at once")
        if self._queued_tokens and is_beyond(
            self._queued_tokens, engine.waiting_tokens, tokens, limits.max_queued_tokens
        ):
            raise queue_full(f"prompts of {limits.max_queued_tokens} tokens may wait at once")

    def _send_held(self) -> None:
        """Submit in order, as far as the ring has room; the rest goes with the next tokens or the next look."""
        while self._held:
            tag, (prompt, params) = next(iter(self._held.items()))
            try:
                if not self._ring.submit(tag, prompt, params):
                    return
            except ValueError as error:
                inbox = self._routes[tag].inbox
                assert inbox is not None  # an abort forgets what is held
                self._end(inbox, invalid(f"The engine cannot serve this: {error}."))
            else:
                del self._held[tag]

    def abort(self, tags: Sequence[int]) -> None:
        """Forget what these tags bring and have the engine drop them; nothing for those that have finished."""
        self._drop(tags, self._ring.abort)

    def pour(self, tag: int, sink: Sink) -> None:
        """Have `sink` take the tokens of a request, from its second on, that have neither logprobs nor an end."""
        if route := self._routes.get(tag):
            route.sink = sink

    def open_spout(self, tag: int, pipe: Pipe, frame: tuple[bytes, bytes], token: int, text: bytes, now: float) -> None:
        """Have the ring library send what comes for `tag`, in a frame, if that is possible now.

        `text` is the JSON of `token`, which the tag's sink has sent before.
        """
        if self._spouts and (socket := pipe.socket) >= 0:
            self._spouts.learn(token, text)
            self._spouts.open(tag, socket, *frame, now)
            pipe.stop = partial(self._close_spout, tag)

    def _close_spout(self, tag: int) -> None:
        """Take account of what was sent, and have no more sent."""
        if self._spouts and tag in self._spouts.tags:
            tokens, last = self._spouts.close(tag)
            route = self._routes[tag]
            assert route.sink  # which has opened it
            route.pace.skip(tokens, last)
            route.sink.skip(tokens)

    def finish(self, tag: int) -> None:
        """Like `abort` for a request whose text is complete, as at a stop string."""
        self._drop([tag], self._ring.finish)

    def _drop(self, tags: Sequence[int], end: Callable[[int], bool]) -> None:
        for tag in tags:
            route = self._routes.get(tag)
            if route is not None and route.inbox is not None:
                self._close_spout(tag)
                route.inbox = None
                if tag in self._held:
                    del self._held[tag]
                    self._forget(tag)
                else:
                    self._ends.append((tag, end))
        self._send_ends()

    def _forget(self, tag: int) -> None:
        self._queued_tokens -= self._routes.pop(tag).queued

    def _send_ends(self) -> None:
        """End in order, as far as the ring has room; the rest goes with the next tokens or the next look."""
        while self._ends:
            tag, end = self._ends[0]
            if tag in self._routes and not end(tag):
                return
            self._ends.popleft()

    def _end(self, inbox: Inbox, error: ApiError) -> None:
        inbox.fail(error)
        self.abort([tag for tag, route in self._routes.items() if route.inbox is inbox])

    def _fail(self, inbox: Inbox) -> None:
        logger.exception("an answer failed")
        self._end(inbox, failed("an internal error"))

    def _wait(self, loop: asyncio.AbstractEventLoop) -> None:
        ring = self._ring
        try:
            while not self._stopping.is_set():
                events = ring.wait(WAIT_S)
                if events:
                    loop.call_soon_threadsafe(self._deliver, events)
                elif self._claim and not ring.status().alive:
                    ring = self._replaced(loop, ring, self._claim)
        # Without this thread no request would ever end: whatever stops it ends them all.
        except Exception:
            logger.exception("the token ring cannot be read")
            loop.call_soon_threadsafe(self._lose_ring)

    def _replaced(
        self, loop: asyncio.AbstractEventLoop, ring: FrontendRing, claim: Callable[[], FrontendRing]
    ) -> FrontendRing:
        """The ring of an engine that has taken the place of `ring`'s, or after a while that one again."""
        self._claiming = True
        try:
            found = claim()
        except RingError:
            self._stopping.wait(WAIT_S)
            return ring
        finally:
            self._claiming = False
        if self._stopping.is_set():
            found.close()
            return ring
        loop.call_soon_threadsafe(self._adopt, found)
        return found

    def _adopt(self, ring: FrontendRing) -> None:
        """Go on with `ring`. What its predecessor was handed after its last look at the engine ends as the rest did."""
        gone, self._ring = self._ring, ring
        self._heartbeat = Heartbeat(ring.status)
        self._ends.clear()
        while events := gone.wait(0):
            self._deliver(events)
        gone.close()

    def _lose_ring(self) -> None:
        reason = "the engine's tokens cannot be read"
        self.close(reason)
        self.fail_all(unavailable(reason))

    def _deliver(self, events: list[TokenEvent]) -> None:
        now = clock()
        reached: list[Inbox] = []
        poured = 0
        route_of = self._routes.get
        for event in self._pour(events, now):
            route = route_of(event.tag)
            if route is None:
                continue
            self._close_spout(event.tag)
            inbox, sink = route.inbox, route.sink
            if sink and inbox and inbox.idle and not (route.queued or event.finish):
                try:
                    taken = sink.take(event.token, now)
                except Exception:
                    self._fail(inbox)
                    taken = False
                if taken:
                    route.pace.go_on(now)
                    poured += 1
                    continue
            if route.queued:
                self._queued_tokens -= route.queued
                route.queued = 0
            route.pace.take(event, now)
            if event.finish:
                del self._routes[event.tag]
                self._held.pop(event.tag, None)  # the engine went away while the ring was found full
            if inbox is None:
                continue
            if inbox.is_empty:
                reached.append(inbox)
            if not inbox.put(route.choice, event):
                self._end(inbox, failed(f"the client fell {INBOX_TOKENS} tokens behind"))
        self.tally.add(GENERATED_TOKENS, poured)
        for inbox in reached:
            try:
                inbox.wake()
            except Exception:
                self._fail(inbox)
        self._send_ends()
        self._send_held()

    def _pour(self, events: list[TokenEvent], now: float) -> list[TokenEvent]:
        """Have spouts send what they can. Returns the others, in order."""
        if not self._spouts or not self._spouts.tags:
            return events
        left, begun = self._spouts.pour(events, now)
        for tag, text, size in begun:
            self._close_spout(tag)
            sink = self._routes[tag].sink
            assert sink  # which has opened the spout
            sink.spill(text, size)
        return left

    async def _watch_engine(self) -> None:
        while True:
            reason = self._heartbeat.unavailable()
            if reason is not None and self._heartbeat.stalled_for() > GIVE_UP_S:
                self.fail_all(unavailable(reason))
            self._send_ends()
            self._send_held()
            await asyncio.sleep(WAIT_S)
