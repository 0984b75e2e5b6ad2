"""Whether an adapter reaches memory that is not the host's: tried before frontends rely on it.

That a driver exports memory and an adapter's takes it says nothing of the way between the two, which a bridge or an
IOMMU may close without a word.
"""

import ctypes
import os
from contextlib import closing
from typing import Protocol

from dualpace.engine.link import LinkError, Port, Region, Span
from dualpace.engine.verbs import Endpoint

_BYTES = 4096


class Memory(Protocol):
    """Memory that adapters may be let at, and that its owner reads and writes by another way."""

    def lend(self, endpoint: Endpoint, offset: int, size: int, *, writable: bool = False) -> Region:
        """Let the peer of `endpoint` read a part of it, or write too."""

    def read(self, offset: int, size: int) -> bytes:
        """What is there now."""

    def write(self, offset: int, content: bytes) -> None:
        """Store `content` there."""


def try_out(memory: Memory, size: int, at: int, port: Port) -> None:
    """Have the adapter write into `memory`, of `size` bytes, and read it, as it will for frontends.

    A page at the offset `at` is zero afterwards. Raises LinkError, and what `memory` raises.
    """
    written, stored = os.urandom(_BYTES), os.urandom(_BYTES)
    buffer = ctypes.create_string_buffer(_BYTES)
    # Of the engine and of a frontend, both of this port.
    with closing(Endpoint(port)) as near, closing(Endpoint(port)) as far:
        region = memory.lend(near, 0, size, writable=True)
        near.connect(far.peer)
        far.connect(near.peer)
        here = Span(False, ctypes.addressof(buffer), _BYTES, far.own(ctypes.addressof(buffer), _BYTES),
                    region.address + at, region.rkey)  # fmt: skip
        ctypes.memmove(buffer, written, _BYTES)
        # A read is done once the write before it is.
        far.wait(far.post([here, here._replace(read=True)], signalled=True), lambda: False)
        if memory.read(at, _BYTES) != written:
            raise LinkError("device", f"{port.device}: what it writes into GPU memory does not arrive there")
        memory.write(at, stored)
        far.wait(far.post([here._replace(read=True)], signalled=True), lambda: False)
        if buffer.raw != stored:
            raise LinkError("device", f"{port.device}: what it reads of GPU memory is not what is there")
    memory.write(at, bytes(_BYTES))
