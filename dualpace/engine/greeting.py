"""What a frontend on another host and the engine's gate say to each other, over TLS, before any operation.

    frontend  Hello    its key, its kind of machine, the bundle that it has
    gate      Welcome  what a frontend needs of the engine's bundle, unless it has that; the files follow
    frontend  Attach   its end of the connection
    gate      Attached the ring that it is given, the other end, and the memory that it may read and write

The gate may say Refused instead, and close. While the connection stays open the ring is the frontend's; whichever side
goes, the other hears of it.
"""

import json
import socket
import struct
import time
from typing import Annotated, TypeVar

from pydantic import Field

from dualpace.engine.link import Peer, Region
from dualpace.frozen import Frozen

PROTOCOL = 1
_MOST_BYTES = 1 << 16
_PIECE = 1 << 20
_LENGTH = struct.Struct("!I")
_PRINTED = r"^[!-~]*$"
# How long a peer may be silent where it has to speak, and may take for a message.
HANDSHAKE_S = 10.0


class GreetingError(Exception):
    """A peer that does not say what it should."""


class RefusedError(GreetingError):
    """What the gate refuses, in its words; `later` it may not."""

    def __init__(self, reason: str, *, later: bool = False) -> None:
        super().__init__(reason)
        self.later = later


class Hello(Frozen):
    """`digest` is that of the bundle whose files the frontend has; "": none."""

    protocol: int
    key: Annotated[str, Field(max_length=4096, pattern=_PRINTED)]
    machine: Annotated[str, Field(max_length=64, pattern=_PRINTED)]
    digest: Annotated[str, Field(max_length=128, pattern=_PRINTED)]


class Welcome(Frozen):
    """`files`: bytes of each, by path in the bundle; they follow in this order."""

    digest: str
    files: dict[str, int]


class Attach(Frozen):
    """`layout` is the hash of what the frontend's library reads and writes; without a `ring` any will do."""

    layout: Annotated[str, Field(max_length=64, pattern=_PRINTED)]
    ring: Annotated[int, Field(ge=0)] | None
    peer: Peer


class Attached(Frozen):
    """`status` may be read, `memory` is that of the ring."""

    ring: int
    peer: Peer
    memory: Region
    status: Region


class Refused(Frozen):
    """Why, in one line, and whether it is worth asking again."""

    reason: str
    later: bool = False


Message = Hello | Welcome | Attach | Attached | Refused
Expected = TypeVar("Expected", bound=Frozen)


def send(connection: socket.socket, message: Message) -> None:
    """Send a message. Raises OSError."""
    text = json.dumps({type(message).__name__: message.model_dump()}).encode()
    send_bytes(connection, _LENGTH.pack(len(text)) + text)


def send_bytes(connection: socket.socket, content: bytes) -> None:
    """Send, to a peer that takes 1 MB a second at the least. Raises OSError."""
    for begin in range(0, len(content), _PIECE):
        connection.settimeout(HANDSHAKE_S + _PIECE / 1e6)
        connection.sendall(content[begin : begin + _PIECE])


def receive(connection: socket.socket, expected: type[Expected], within_s: float = HANDSHAKE_S) -> Expected:
    """The message that comes next. Raises RefusedError, GreetingError or OSError."""
    end = time.monotonic() + within_s
    (length,) = _LENGTH.unpack(receive_bytes(connection, _LENGTH.size, within_s))
    if length > _MOST_BYTES:
        raise GreetingError(f"a message of {length} bytes; this is no DualPace peer")
    text = receive_bytes(connection, length, end - time.monotonic())
    try:
        said = json.loads(text)
        if isinstance(said, dict) and list(said) == [Refused.__name__]:
            refused = Refused.model_validate(said[Refused.__name__])
            raise RefusedError(refused.reason, later=refused.later)
        return expected.model_validate(said[expected.__name__])
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise GreetingError(
            f"not the {expected.__name__} of protocol {PROTOCOL}; use one version at both ends"
        ) from error


def receive_bytes(connection: socket.socket, count: int, within_s: float = HANDSHAKE_S) -> bytes:
    """So many bytes, at 1 MB a second at the least. Raises GreetingError if the peer closes before, or OSError."""
    parts: list[bytes] = []
    end = time.monotonic() + within_s + count / 1e6
    while count:
        # Not for each part anew: a peer that sends byte by byte would hold its place for ever.
        connection.settimeout(max(end - time.monotonic(), 1e-3))
        part = connection.recv(min(count, 1 << 20))
        if not part:
            raise GreetingError("the peer has closed the connection")
        parts.append(part)
        count -= len(part)
    return b"".join(parts)


def keep_alive(connection: socket.socket) -> None:
    """Find a peer dead whose host is gone: after four seconds of silence, five questions a second apart."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 4)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 5)
