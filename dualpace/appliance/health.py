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
        self._moved = clock()
        self.status = status()

    def unavailable(self) -> str | None:
        """Look at the engine: why it cannot take a request now, as a clause; None while it can.

        What was seen stays in `status`.
        """
        before, status = self.status, self._status()
        self.status = status
        if status.heartbeat != before.heartbeat:
            self._moved = self._clock()
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
