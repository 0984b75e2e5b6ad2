"""Where an engine's process waits while its device is parked, for a frontend that has written something."""

import ctypes
from pathlib import Path

from dualpace.engine.memory import RingMemory


class Doorbell:
    """That of `memory`; `library` is the bundle's ring library."""

    def __init__(self, library: Path, memory: RingMemory) -> None:
        self._wait = ctypes.CDLL(str(library)).dp_ring_await_wake
        self._wait.argtypes, self._wait.restype = (ctypes.c_void_p, ctypes.c_int64), ctypes.c_int
        self._address = memory.address

    def rings(self, seconds: float) -> bool:
        """Whether it has rung since the device parked, or does within `seconds`. Moves the heartbeat; takes no CPU."""
        return bool(self._wait(self._address, round(seconds * 1e6)))
