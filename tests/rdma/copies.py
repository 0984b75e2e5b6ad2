"""A connection without adapters: each operation is a copy, done at once, in order, as it is posted."""

import ctypes
import ssl

from dualpace.engine.greeting import Attached
from dualpace.engine.link import Peer, Region
from dualpace.engine.remote import Connection, RdmaTransport
from dualpace.engine.traffic import Traffic
from dualpace.plan import abi

PEER = Peer(gid=":".join(8 * ["0000"]), qpn=0, psn=0, mtu=1, reads=0)


class Endpoint:
    """The frontend's end; `read(offset, size)` and `write(offset, content)` are of the engine's ring memory."""

    peer, room = PEER, 1024

    def __init__(self, read, write):
        self._read, self._write = read, write

    def own(self, address, size):
        return 0

    def post(self, spans, *, signalled=False):
        for span in spans:
            if span.read:
                ctypes.memmove(span.address, self._read(span.remote, span.size), span.size)
            else:
                self._write(span.remote, ctypes.string_at(span.address, span.size))
        return 0

    def wait(self, ticket, given_up):
        assert not given_up()

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
    connection = Connection(Control(let_go), Endpoint(read, write), Attached(ring=ring, peer=PEER, **regions))
    return RdmaTransport(connection, plan, folder, Traffic())
