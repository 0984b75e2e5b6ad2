"""Adapters that are tried at memory which might not be reached: here it is the host's, lent as a GPU's would be."""

import ctypes

import pytest

from dualpace.engine.link import LinkError, Port
from dualpace.engine.trial import try_out

PORT, SIZE, AT = Port("rxe0", 1, 1), 1 << 16, 1 << 13


class Memory:
    """What adapters are let at, and what its owner sees; these are two if `apart`."""

    def __init__(self, apart=()):
        self.lent = ctypes.create_string_buffer(SIZE)
        self.seen = ctypes.create_string_buffer(SIZE) if "writes" in apart else self.lent
        self.stored = ctypes.create_string_buffer(SIZE) if "reads" in apart else self.lent

    def lend(self, endpoint, offset, size, *, writable=False):
        return endpoint.lend(ctypes.addressof(self.lent) + offset, size, writable=writable)

    def read(self, offset, size):
        return self.seen[offset : offset + size]

    def write(self, offset, content):
        ctypes.memmove(ctypes.addressof(self.stored) + offset, content, len(content))


def test_memory_that_the_adapter_reaches_is_left_as_it_was():
    memory = Memory()
    try_out(memory, SIZE, AT, PORT)
    assert not any(memory.lent.raw)


@pytest.mark.parametrize(
    ("apart", "words"),
    [("writes", "what it writes into GPU memory does not arrive"), ("reads", "what it reads of GPU")],
)
def test_memory_that_it_does_not_reach_is_refused(apart, words):
    with pytest.raises(LinkError, match=words):
        try_out(Memory([apart]), SIZE, AT, PORT)
