"""The words of a connection for one-sided operations, whatever makes it."""

from typing import Annotated, NamedTuple

from pydantic import Field

from dualpace.frozen import Frozen

INLINE = 64


class LinkError(Exception):
    """A connection that has failed, `kind` being one of `traffic.FAULTS`; or, of kind device, none that can be made."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


class Port(NamedTuple):
    """A port of a device and the index of the GID that it is addressed by."""

    device: str
    port: int
    gid_index: int


class Peer(Frozen):
    """One end of a connection, as the other has to know it; `mtu` is the verbs' code of it, `reads` at once."""

    gid: Annotated[str, Field(pattern=r"^([0-9a-f]{4}:){7}[0-9a-f]{4}$")]
    qpn: Annotated[int, Field(ge=0, lt=1 << 24)]
    psn: Annotated[int, Field(ge=0, lt=1 << 24)]
    mtu: Annotated[int, Field(ge=1, le=5)]
    reads: Annotated[int, Field(ge=0, le=255)]


class Region(Frozen):
    """Memory of a peer that may be read, or written too."""

    address: Annotated[int, Field(ge=0, lt=1 << 64)]
    size: Annotated[int, Field(ge=0, lt=1 << 64)]
    rkey: Annotated[int, Field(ge=0, lt=1 << 32)]


class Span(NamedTuple):
    """An operation: `size` bytes between here and there. A write of up to INLINE bytes is copied as it is posted."""

    read: bool
    address: int
    size: int
    lkey: int
    remote: int
    rkey: int
