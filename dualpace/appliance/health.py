"""Whether the engine lives, told by its heartbeat."""

import time
from collections.abc import Callable

from dualpace.engine.ring import Status

# A probe must turn within 2 s of a stall; sampling and the probe itself take the rest.
STALLED_S = 1.5


class Heartbeat:
    """Follows the counter that the engine's loop raises. Times are in seconds of `clock`."""

    def __init__(self, status: Callable[[], Status], clock: Callable[[], float] = time.monotonic) -> None:
        self._status = status
        self._clock = clock
        self._count = -1
        self._moved = clock()

    def unavailable(self) -> str | None:
        """Look at the engine: why it cannot take a request now, as a clause; None while it can."""
        status = self._status()
        if status.heartbeat != self._count:
            self._count, self._moved = status.heartbeat, self._clock()
        if status.stopped or not status.alive:
            return "the engine has stopped"
        if not status.ready:
            return "the engine is loading the model"
        if self.stalled_for() > STALLED_S:
            return f"the engine's heartbeat stopped {self.stalled_for():.1f} s ago"
        return None

    def stalled_for(self) -> float:
        """How long ago the heartbeat was first seen at its present count."""
        return self._clock() - self._moved
