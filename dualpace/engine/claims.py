"""Who has claimed a ring, as the engine's process sees it: it looks for frontends that have died.

A frontend of this host holds the lock of its ring by itself; for one of another host, the gate does.
"""

import ctypes
import fcntl
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from dualpace.engine.memory import RingMemory, is_unlocked, ring_byte, write_lock

_SECONDS = 1.0


class Claims:
    """The locks of the rings of `memory`, by which a claim is known to be alive."""

    def __init__(self, library: Path, memory: RingMemory, end: Callable[[Callable[[int], bool]], None] | None) -> None:
        """`library` is the bundle's ring library; `end` takes its place where the rings are elsewhere than their locks.

        It is given what says whether a ring is held.
        """
        self._memory, self._elsewhere = memory, end
        self._end = ctypes.CDLL(str(library)).dp_ring_end_dead_claims
        self._end.argtypes, self._end.restype = (ctypes.c_void_p, ctypes.c_int), None

    def end_dead(self) -> None:
        """End what frontends that have died left. It costs a system call a ring."""
        if self._elsewhere:
            self._elsewhere(self._is_held)
        else:
            self._end(self._memory.address, self._memory.file)

    def _is_held(self, ring: int) -> bool:
        lock = fcntl.fcntl(self._memory.file, fcntl.F_OFD_GETLK, write_lock(ring_byte(ring)))
        return not is_unlocked(lock)

    def hold(self, ring: int) -> int | None:
        """Lock a ring for a frontend of another host; None if it is in use. Whoever closes the descriptor lets go."""
        # Opened anew: a lock belongs to what `open` made.
        file = os.open(f"/proc/self/fd/{self._memory.file}", os.O_RDWR | os.O_CLOEXEC)
        try:
            fcntl.fcntl(file, fcntl.F_OFD_SETLK, write_lock(ring_byte(ring)))
        except BlockingIOError:
            os.close(file)
            return None
        return file


@contextmanager
def ending_dead_claims(
    library: Path, memory: RingMemory, end: Callable[[Callable[[int], bool]], None] | None = None
) -> Iterator[Claims]:
    """Until the block ends, look about once a second for what frontends that have died left; `end` as of Claims."""
    claims = Claims(library, memory, end)
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
