"""Offering a load: when each request is sent, and when the run is over."""

import asyncio
import math
import secrets
import time
from collections import deque
from collections.abc import Callable, Iterator

from dualpace.bench.alarm import Alarm
from dualpace.bench.answer import Answer
from dualpace.bench.arrivals import gamma
from dualpace.bench.client import Client
from dualpace.bench.lengths import Request, WorkloadError
from dualpace.bench.load import Load
from dualpace.bench.prompts import Bodies
from dualpace.bench.record import BLOCKS

# Requests whose bodies are made before they are due.
AHEAD = 4


class Driver:
    """Sends a load's requests in time until there are enough; `sent` is told when each was to be sent, and when it was.

    An open loop sends at the intended time whatever has become of earlier requests, and times count from then: that
    a request could not be sent in time makes it late, not later. A closed loop intends to send when it was answered.
    """

    def __init__(
        self,
        load: Load,
        requests: Iterator[Request],
        client: Client,
        start: float,
        sent: Callable[[float, float], None],
    ) -> None:
        self._load = load
        self._client = client
        self.start = start
        self._sent = sent
        self._bodies = Bodies(load, secrets.token_hex(8))
        self._requests = self._timed(requests)
        self._ahead: deque[tuple[float, Request, bytes]] = deque()
        self._exhausted = False
        self._over = asyncio.Event()
        self.by_time = False
        self._failure: WorkloadError | None = None
        self.issued = 0
        self._alarm = Alarm(asyncio.get_running_loop(), self._send_due)
        self._fill()

    async def run(self) -> None:
        """Return once every request has been sent that is to be. Raises WorkloadError where a file ends in nonsense."""
        load, end = self._load, None
        if not load.concurrency:
            self._send_due()
        elif load.duration:  # an open loop ends with the last request that was to be sent, sent in time or not
            end = asyncio.get_running_loop().call_later(load.duration, self._time_is_up)
        for _ in range(load.concurrency or 0):
            self.answered(self.start)
        try:
            await self._over.wait()
            if self._failure:
                raise self._failure
        finally:
            self._alarm.close()
            if end:
                end.cancel()

    def answered(self, now: float) -> None:
        """A client of a closed loop is free."""
        if not self._load.concurrency or self._over.is_set():
            return
        if self._ahead:
            _, request, body = self._ahead.popleft()
            self._sent(now, time.monotonic())
            self._send(now, request, body)
        self._fill()

    def _timed(self, requests: Iterator[Request]) -> Iterator[tuple[float, Request]]:
        load = self._load
        if load.rate:
            return zip(gamma(load.rate, load.burstiness, load.seed), requests, strict=False)
        # To a closed loop a trace gives lengths alone.
        speed = math.inf if load.concurrency else load.speed
        return (((request.at or 0.0) / speed, request) for request in requests)

    def _fill(self) -> None:
        """Have bodies ready, and end when all have been sent."""
        load = self._load
        while len(self._ahead) < AHEAD and not self._exhausted:
            enough = load.requests and self.issued + len(self._ahead) >= load.requests
            found = None if enough else self._next()
            self.by_time = bool(found and load.duration and found[0] >= load.duration)
            if found is None or self.by_time:
                self._exhausted = True
            else:
                at, request = found
                self._ahead.append((at, request, self._bodies.body(request)))
        if self._exhausted and not self._ahead:
            self._over.set()

    def _next(self) -> tuple[float, Request] | None:
        try:
            return next(self._requests, None)
        except WorkloadError as error:
            self._failure = error
            return None

    def _time_is_up(self) -> None:
        self.by_time = True
        self._over.set()

    def _send_due(self) -> None:
        while self._ahead and not self._over.is_set():
            at, request, body = self._ahead[0]
            intended = self.start + at
            now = time.monotonic()
            if now < intended:
                self._alarm.set(intended)
                return
            self._sent(intended, now)
            del self._ahead[0]
            self._send(intended, request, body)
            self._fill()

    def _send(self, intended: float, request: Request, body: bytes) -> None:
        self.issued += 1
        self._client.send(body, Answer(intended, request.output, min(int(self._part(intended) * BLOCKS), BLOCKS - 1)))

    def _part(self, intended: float) -> float:
        """How far the run has come, from 0 to 1."""
        by_time = (intended - self.start) / self._load.duration if self._load.duration else 0.0
        by_count = self.issued / self._load.requests if self._load.requests else 0.0
        return max(by_time, by_count)
