"""Who has claimed a ring, as the engine's process sees it: it looks for frontends that have died.

A frontend of this host holds the lock of its ring by itself; for one of another host, the gate does.
"""

import ctypes
import fcntl
import os
import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from dualpace.engine.memory import RingMemory, ring_byte, write_lock

_SECONDS = 1.0


class Claims:
    """The locks of the rings of `memory`, by which a claim is known to be alive."""

    def __init__(self, library: Path, memory: RingMemory, turn: Callable[[int, int], None] | None = None) -> None:
        """`library` is the bundle's ring library; `turn` turns rings over that are elsewhere than their locks."""
        self._memory = memory
        loaded = ctypes.CDLL(str(library))
        self._end, self._turn = loaded.dp_ring_end_dead_claims, loaded.dp_ring_turn_over
        self._end.argtypes, self._end.restype = (ctypes.c_void_p, ctypes.c_int), None
        self._turn.argtypes, self._turn.restype = (ctypes.c_void_p, ctypes.c_uint32, ctypes.c_uint32), None
        self._elsewhere = turn

    def end_dead(self) -> None:
        """End what frontends of this host that have died left. It costs a system call a ring."""
        self._end(self._memory.address, self._memory.file)

    def hold(self, ring: int) -> int | None:
        """Lock a ring for a frontend of another host, until `let_go`; None if it is in use."""
        # Opened anew: a lock belongs to what `open` made.
        file = os.open(f"/proc/self/fd/{self._memory.file}", os.O_RDWR | os.O_CLOEXEC)
        try:
            fcntl.fcntl(file, fcntl.F_OFD_SETLK, write_lock(ring_byte(ring)))
        except BlockingIOError:
            os.close(file)
            return None
        except OSError:
            os.close(file)
            raise
        return file

    def let_go(self, ring: int, lock: int) -> None:
        """End what the frontend left, once it can write nothing more, and unlock the ring.

        Nothing of it is there for the next one, whose epoch it cannot have known.
        """
        try:
            epoch = random.SystemRandom().randrange(0, 1 << 32, 2)
            if self._elsewhere:
                self._elsewhere(ring, epoch)
            else:
                self._turn(self._memory.address, ring, epoch)
        finally:
            os.close(lock)


@contextmanager
def ending_dead_claims(
    library: Path, memory: RingMemory, turn: Callable[[int, int], None] | None = None
) -> Iterator[Claims]:
    """Until the block ends, look about once a second for what frontends that have died left; `turn` as of Claims."""
    claims = Claims(library, memory, turn)
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(_SECONDS):
            claims.end_dead()

    thread = threading.Thread(target=watch, name="claims", daemon=True)
    thread.start()
    try:
        yield claims
    finally:
        ended.set()
        thread.join()
