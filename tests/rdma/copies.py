"""In the place of `dualpace.engine.verbs`, without adapters: each operation is a copy, done as it is posted, in order.

Both ends are in this process, unless the engine's memory is reached by `read` and `write`.
"""

import ctypes
import itertools
import ssl

from dualpace.engine.greeting import Attached
from dualpace.engine.link import LinkError, Peer, Region
from dualpace.engine.remote import Connection, RdmaTransport
from dualpace.engine.traffic import Traffic
from dualpace.plan import abi

DEVICES = ("rxe0", "rxe1")
# Where what a descriptor stands for begins.
EXPORTED: dict[int, int] = {}
_NUMBERS = itertools.count(1)


def _written(address, content):
    ctypes.memmove(address, content, len(content))


class Endpoint:
    """One end."""

    room = 1024

    def __init__(self, port=None, traffic=None, read=ctypes.string_at, write=_written):
        if port and port.device not in DEVICES:
            raise LinkError("device", f"{port.device}: there are {DEVICES}; name one that `ibv_devices` lists")
        self._traffic, self._read, self._write = traffic or Traffic(), read, write
        self.peer = Peer(gid=":".join(8 * ["00ff"]), qpn=next(_NUMBERS), psn=0, mtu=1, reads=1)

    def connect(self, peer):
        pass

    def lend(self, address, size, *, writable=False, fd=None):
        return Region(address=address + EXPORTED.get(fd, 0), size=size, rkey=next(_NUMBERS))

    def own(self, address, size):
        return 0

    def post(self, spans, *, signalled=False):
        self._traffic.doorbells += 1
        for span in spans:
            if span.read:
                ctypes.memmove(span.address, self._read(span.remote, span.size), span.size)
            else:
                self._write(span.remote, ctypes.string_at(span.address, span.size))
        return 0

    def wait(self, ticket, given_up):
        if given_up():
            raise LinkError("closed", "the peer has closed the connection")

    def is_sound(self):
        return True

    def close(self):
        pass


class Control:
    """The TCP connection to a gate."""

    def __init__(self, left):
        self._left = left

    def recv(self, size):
        raise ssl.SSLWantReadError

    def close(self):
        self._left()


def transport(plan, ring, folder, read, write, let_go):
    """The transport of a ring, and its traffic; `let_go` does what a gate does about a frontend that has left."""
    layout = abi.view("RingMemory", plan)
    each = layout.rings.size // plan.rings.rings
    regions = {
        "memory": Region(address=layout.rings.offset + ring * each, size=each, rkey=0),
        "status": Region(address=layout.status.offset, size=layout.status.size, rkey=0),
    }
    endpoint = Endpoint(read=read, write=write)
    connection = Connection(Control(let_go), endpoint, Attached(ring=ring, peer=endpoint.peer, **regions))
    return RdmaTransport(connection, plan, folder, Traffic())
