"""Looks for frontends that have died, beside the thread that steps."""

import ctypes
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dualpace.engine.memory import RingMemory

_SECONDS = 1.0


@contextmanager
def ending_dead_claims(library: Path, memory: RingMemory) -> Iterator[None]:
    """Until the block ends, end about once a second what frontends that have died left in `memory`.

    `library` is the bundle's ring library. Each look costs a system call a ring.
    """
    look = ctypes.CDLL(str(library)).dp_ring_end_dead_claims
    look.argtypes, look.restype = (ctypes.c_void_p, ctypes.c_int), None
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(_SECONDS):
            look(memory.address, memory.file)

    thread = threading.Thread(target=watch, name="claims", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
