"""The transport of a frontend on another host: one-sided RDMA between a copy of its ring here and the engine's ring.

The ring library claims and works on the copy as it does on shared memory. What it writes there is written on to the
engine: a request's span, then its record, then the record's flag. What the engine has written is read: first the line
of its counts, and once that shows token records they too, which are whole by then. A reader that looked at the flags
from afar might see one and yet have read what lies before it too early, as the bytes of one read have no order.
"""

import ctypes
import logging
import mmap
import ssl
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dualpace.engine.greeting import Attached
from dualpace.engine.link import LinkError, Region, Span
from dualpace.engine.memory import RingMemory
from dualpace.engine.traffic import Traffic
from dualpace.plan import abi
from dualpace.plan.plan import Plan

if TYPE_CHECKING:
    from dualpace.engine.verbs import Endpoint

# The engine's status is as old as this at most, as long as anybody waits for tokens.
_STATUS_S = 0.1
# Between two looks: a quarter of the silence, at most the greater of a quarter of a millisecond and a two-hundredth of
# the silence, and no more than the last. A request that is submitted ends the pause.
_SHORT_S, _LONG_S = 250e-6, 0.05
# Flags follow the count of their records within microseconds.
_TORN_S = 1.0
_FLAG = 8
_NEEDED = 8  # operations: a request, and a look

logger = logging.getLogger(__name__)


class Connection:
    """What a frontend has from the gate: the open TCP connection, its end of the RDMA connection, and the grants."""

    def __init__(self, control: ssl.SSLSocket, endpoint: "Endpoint", attached: Attached) -> None:
        self.control, self.endpoint, self.attached = control, endpoint, attached

    def is_closed(self) -> bool:
        """Whether the gate has closed it: it never says anything more."""
        try:
            self.control.recv(1)
        except ssl.SSLWantReadError:
            return False
        except OSError:
            return True
        return True

    def close(self) -> None:
        """End both connections."""
        try:
            self.endpoint.close()
        finally:
            self.control.close()


class RdmaTransport:
    """Carries one ring."""

    def __init__(self, connection: Connection, plan: Plan, folder: Path, traffic: Traffic) -> None:
        """Make the copy, a file in `folder`. Raises LinkError or RingMemoryError."""
        self._connection, self._traffic = connection, traffic
        self.ring = connection.attached.ring
        # Another each time: the last one's copy may still be read.
        self.path = folder / f"ring{self.ring}.{connection.attached.peer.qpn}.{connection.endpoint.peer.qpn}"
        self._copy = RingMemory(self.path, plan, reserved=False)
        self._lost = False
        self._lock = threading.Lock()
        self._stirred = threading.Event()
        try:
            self._lay_out(plan)
            # The epoch that the ring's last owner left.
            self._run([self._read(self._control, "epoch")])
        except LinkError:
            self.close()
            raise
        traffic.connections += 1

    def _lay_out(self, plan: Plan) -> None:
        memory = abi.view("RingMemory", plan).from_address(self._copy.address)
        endpoint, attached = self._connection.endpoint, self._connection.attached
        self._status, self._view = memory.status, memory.rings[self.ring]
        self._control, self._slots = self._view.control, len(self._view.tokens)
        self._scratch = mmap.mmap(-1, mmap.PAGESIZE)
        self._first_line = type(self._control).from_buffer(self._scratch)
        self._status_keys = self._keys(endpoint, self._status, attached.status)
        self._ring_keys = self._keys(endpoint, self._view, attached.memory)
        # Counts of an epoch that the engine has not seen yet are not to be believed, so they go elsewhere.
        self._first_key = endpoint.own(ctypes.addressof(self._first_line), ctypes.sizeof(self._first_line))
        self._seen = False
        self._acked = self._brought = 0
        self._torn_since: float | None = None
        self._news = self._status_read = 0.0

    @staticmethod
    def _keys(endpoint: "Endpoint", copy: Any, theirs: Region) -> tuple[int, Region, int]:
        address, size = ctypes.addressof(copy), ctypes.sizeof(copy)
        if theirs.size != size:
            raise LinkError("forged", f"the engine lends {theirs.size} bytes where {size} are needed")
        return endpoint.own(address, size), theirs, address

    # What goes to the engine. Of the two threads that get here, the waiting one alone ends the connection.

    def claimed(self) -> None:
        """Tell the engine of the new epoch, with its count of tokens before it."""
        self._post([self._write(self._control, "token_read"), self._write(self._control, "epoch")])

    def has_room(self) -> bool:
        """Whether the queue takes a request and what goes with it; nothing does once the connection is lost."""
        return not self._lost and self._connection.endpoint.room >= _NEEDED

    def submitted(self, index: int) -> None:
        """Write the span, the record, its flag."""
        with self._lock:
            if self._lost:
                return
            record = self._view.submits[index % len(self._view.submits)]
            begin = ctypes.sizeof(ctypes.c_uint32) * record.arena_begin
            size = ctypes.sizeof(ctypes.c_uint32) * record.arena_words
            span = self._span(ctypes.addressof(self._view.arena) + begin, size)
            self._post([span, *self._record(record)])
        self._stir()

    def ended(self, index: int) -> None:
        """Write the record, its flag."""
        with self._lock:
            if not self._lost:
                self._post(self._record(self._view.aborts[index % len(self._view.aborts)]))
        self._stir()

    def _record(self, record: Any) -> list[Span]:
        address, payload = ctypes.addressof(record), ctypes.sizeof(record) - _FLAG
        return [self._span(address, payload), self._span(address + payload, _FLAG)]

    def _post(self, spans: list[Span]) -> None:
        try:
            self._connection.endpoint.post(spans)
        except LinkError as error:
            # Whoever waits for tokens finds the same, and ends the connection.
            logger.debug("not written: %s", error)

    def _stir(self) -> None:
        self._news = time.monotonic()
        self._stirred.set()

    # What comes from the engine, to the thread that waits.

    def await_records(self, timeout_s: float) -> float:
        """Look until there are token records that were not there before, and bring them."""
        end = time.monotonic() + timeout_s
        while not self._lost:
            try:
                if self._look():
                    self._news = time.monotonic()
                    break
            except LinkError as error:
                # What the engine ends fails too, in one way or another.
                closed = error.kind != "closed" and self._connection.is_closed()
                self._lose("closed" if closed else error.kind, str(error))
                break
            now = time.monotonic()
            if now >= end:
                break
            quiet = now - self._news
            pause = min(quiet / 4, max(_SHORT_S, min(quiet / 200, _LONG_S)), end - now)
            self._stirred.wait(pause)
            self._stirred.clear()
        return 0.0

    def taken(self, count: int) -> None:
        """The library has found so many records whole, and will be acknowledged with the next look."""
        if self._lost:
            return
        missing = self._brought - self._control.token_read
        if count or not missing:
            self._torn_since = None
        elif self._torn_since is None:
            self._torn_since = time.monotonic()
        elif time.monotonic() - self._torn_since > _TORN_S:
            self._lose("torn", f"the engine counts {missing} token records more than are there")

    def _look(self) -> bool:
        """Read the engine's counts, then what they show; whether there is something for the library."""
        read = self._control.token_read
        if self._brought != read and self._torn_since is None:
            return True
        if self._connection.is_closed():
            raise LinkError("closed", "the engine has closed the connection")
        chain = []
        if self._acked != read:
            chain.append(self._write(self._control, "token_read"))
        now = time.monotonic()
        if now - self._status_read > _STATUS_S:
            self._status_read = now
            chain.append(
                self._of(self._status_keys, ctypes.addressof(self._status), ctypes.sizeof(self._status), read=True)
            )
        self._run([*chain, self._counts()])
        self._acked = read
        if not self._seen:
            self._seen = self._first_line.seen_epoch == self._control.epoch
            return False
        epoch, written = divmod(self._control.token_written, 2**32)
        count = (written - read) % 2**32 if epoch == self._control.epoch else 0
        if count > self._slots:
            raise LinkError("forged", f"the engine counts {count} token records, a ring has {self._slots}")
        if count:
            self._bring(read, count)
        return count > 0

    def _counts(self) -> Span:
        """A read of the line that the engine alone writes."""
        begin = type(self._control).seen_epoch.offset
        size = type(self._control).token_written.offset + type(self._control).token_written.size - begin
        span = self._span(ctypes.addressof(self._control) + begin, size, read=True)
        if self._seen:
            return span
        return span._replace(address=ctypes.addressof(self._first_line) + begin, lkey=self._first_key)

    def _bring(self, first: int, count: int) -> None:
        """Read records, and for those that have some, what was most probable beside them."""
        self._run(self._slots_of(self._view.tokens, first, count))
        at = [i for i in range(first, first + count) if self._view.tokens[i % self._slots].top_count]
        if at:
            self._run(self._slots_of(self._view.tops, at[0], at[-1] + 1 - at[0]))
        self._brought = (first + count) % 2**32

    def _slots_of(self, array: Any, first: int, count: int) -> list[Span]:
        begin, each = first % self._slots, ctypes.sizeof(array[0])
        here = min(count, self._slots - begin)
        parts = [(begin, here), (0, count - here)]
        return [self._span(ctypes.addressof(array) + each * at, each * n, read=True) for at, n in parts if n]

    def _run(self, chain: list[Span]) -> None:
        endpoint = self._connection.endpoint
        endpoint.wait(endpoint.post(chain, signalled=True), self._connection.is_closed)

    def _lose(self, kind: str, why: str) -> None:
        """The connection is over: to the ring library the engine is gone."""
        self._traffic.faults[kind] += 1
        logger.warning("the connection to the engine is lost: %s", why)
        self._end()

    def close(self) -> None:
        """End the connection; the gate ends what is left of the ring."""
        self._end()

    def _end(self) -> None:
        with self._lock:
            if self._lost:
                return
            self._lost = True
            self._connection.close()
            for name in ("_status", "_view", "_control", "_first_line"):
                vars(self).pop(name, None)
            self._copy.close()

    # Operations between a place in the copy and the same place in the engine's memory.

    def _read(self, struct: Any, field: str) -> Span:
        return self._field(struct, field, read=True)

    def _write(self, struct: Any, field: str) -> Span:
        return self._field(struct, field, read=False)

    def _field(self, struct: Any, field: str, *, read: bool) -> Span:
        place = getattr(type(struct), field)
        return self._span(ctypes.addressof(struct) + place.offset, place.size, read=read)

    def _span(self, address: int, size: int, *, read: bool = False) -> Span:
        return self._of(self._ring_keys, address, size, read=read)

    def _of(self, keys: tuple[int, Region, int], address: int, size: int, *, read: bool) -> Span:
        lkey, theirs, base = keys
        return Span(read, address, size, lkey, theirs.address + address - base, theirs.rkey)
