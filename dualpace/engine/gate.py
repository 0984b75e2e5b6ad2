"""Where frontends of other hosts come in: the engine's end of their connections.

A frontend writes its requests and reads its tokens with one-sided operations; no request and no token makes anything
run here. The gate greets a frontend, gives it a ring of its own, and from then on waits for it to go. To the engine it
looks like a frontend of this host: it holds the lock of the ring while the connection lives. It lets go once nothing
more can be written, and what the frontend left is ended.
"""

import hmac
import math
import os
import platform
import select
import socket
import ssl
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import Protocol

from dualpace.address import bound, shown
from dualpace.engine.certificate import Certificate
from dualpace.engine.claims import Claims
from dualpace.engine.followed import Followed
from dualpace.engine.greeting import (
    PROTOCOL,
    Attach,
    Attached,
    GreetingError,
    Hello,
    Refused,
    RefusedError,
    Welcome,
    keep_alive,
    receive,
    send,
    send_bytes,
)
from dualpace.engine.link import LinkError, Port, Region
from dualpace.engine.verbs import Endpoint
from dualpace.plan import abi
from dualpace.plan.manifest import HardwareError, Manifest, frontend_files, ring_library
from dualpace.plan.nic_key import read_key
from dualpace.plan.plan import Nic

# How often a connection is looked at whose peer says nothing, which is all of them.
_WATCH_S = 1.0
# Who has not shown the key yet has this long for TLS, and again for the key; of more than so many the oldest goes.
_STRANGER_S, _STRANGERS = 3.0, 32
_PAUSE_S = 1.0
_STRANGE = ("greeting", "failed", "accept", "refused")


class Lender(Protocol):
    """The ring memory, wherever it is."""

    def lend(self, endpoint: Endpoint, offset: int, size: int, *, writable: bool = False) -> Region:
        """Let the peer of `endpoint` read a part of it, or write too. Raises LinkError."""


class Gate:
    """A listening socket, a thread that accepts, and one for each connection."""

    def __init__(
        self, bundle: Path, manifest: Manifest, nic: Nic, memory: Lender, claims: Claims, say: Callable[[str], None]
    ) -> None:
        """Open it over `memory`. Raises BundleError, HardwareError where device or address cannot be had."""
        self._bundle, self._manifest, self._nic = bundle, manifest, nic
        self._memory, self._claims, self._say = memory, claims, say
        self._port = Port(nic.device, nic.port, nic.gid_index)
        self._certificate = Certificate("nic.gate.tls", nic.tls_certificate, nic.tls_key)
        self._key_file = Followed(self._read_key, nic.key_file)
        self._read_key()
        self._ends: Counter[str] = Counter()
        self._said: dict[str, float] = {}
        self._lock = threading.Lock()
        # By thread, the oldest first. Strangers have not shown the key yet.
        self._connections: dict[threading.Thread, ssl.SSLSocket] = {}
        self._strangers: dict[threading.Thread, None] = {}
        try:
            Endpoint(self._port).close()  # says now what is wrong with the device
            self._listener = bound(nic.gate_host, nic.gate_port)
        except (LinkError, OSError) as error:
            where = shown(nic.gate_host, nic.gate_port)
            raise HardwareError(f"frontends cannot come in at {where} through {nic.device}: {error}") from error
        self._closed, self._wake = os.pipe2(os.O_CLOEXEC)
        self._listener.listen()
        self.address = self._listener.getsockname()[:2]
        say(f"frontends come in at {shown(*self.address)}, through {nic.device}")
        self._acceptor = threading.Thread(target=self._accept, name="gate", daemon=True)
        self._acceptor.start()

    def close(self) -> None:
        """End all connections, and what their frontends left. Nobody's silence holds it up."""
        os.close(self._wake)
        self._acceptor.join()
        with self._lock:
            left = dict(self._connections)
        for connection in left.values():
            _shut(connection)
        for thread in left:
            thread.join()
        self._listener.close()
        os.close(self._closed)

    def _accept(self) -> None:
        while self._closed not in _readable(self._listener, self._closed):
            try:
                plain, (host, *_) = self._listener.accept()
                with plain:  # unless it is taken on
                    # By this thread, so that a certificate changes while no connection is made with it.
                    self._certificate.follow()
                    self._key_file.follow()
                    self._begin(plain, host)
            except (OSError, RuntimeError) as error:  # for want of descriptors or threads, which passes
                self._note("accept", "?", str(error))
                _readable(self._closed, timeout_s=_PAUSE_S)

    def _begin(self, plain: socket.socket, host: str) -> None:
        try:
            connection = self._certificate.context.wrap_socket(plain, server_side=True, do_handshake_on_connect=False)
        except OSError as error:  # it has gone already
            self._note("greeting", host, str(error))
            return
        thread = threading.Thread(target=self._serve, args=(connection, host), name="gate", daemon=True)
        with self._lock:
            try:
                thread.start()
            except RuntimeError:
                connection.close()
                raise
            self._connections[thread] = connection
            self._strangers[thread] = None
            if len(self._strangers) > _STRANGERS:
                oldest = next(iter(self._strangers))
                del self._strangers[oldest]
                _shut(self._connections[oldest])

    def _read_key(self) -> str:
        self._key = read_key(self._nic.key_file)
        return "frontends have to show it when they come in"

    def _serve(self, connection: ssl.SSLSocket, host: str) -> None:
        """Greet a frontend and keep its connection until it ends."""
        try:
            connection.settimeout(_STRANGER_S)
            keep_alive(connection)
            connection.do_handshake()
            try:
                self._admit(connection, host)
            except RefusedError as refusal:
                self._note("refused", host, str(refusal))
                send(connection, Refused(reason=str(refusal), later=refusal.later))
        except (OSError, GreetingError, LinkError) as error:
            self._note("greeting", host, str(error))
        except Exception as error:  # whatever a stranger says, it is counted and the gate stays
            self._note("failed", host, f"{type(error).__name__}: {error}")
        finally:
            connection.close()
            with self._lock:
                self._connections.pop(threading.current_thread(), None)
                self._strangers.pop(threading.current_thread(), None)

    def _admit(self, connection: ssl.SSLSocket, host: str) -> None:
        hello = receive(connection, Hello, _STRANGER_S)
        library = self._checked(hello)
        with self._lock:
            self._strangers.pop(threading.current_thread(), None)
        has_them = hello.digest == self._manifest.digest
        files = {} if has_them else frontend_files(self._bundle, self._manifest, library)
        sizes = {name: len(content) for name, content in files.items()}
        send(connection, Welcome(digest=self._manifest.digest, files=sizes))
        for content in files.values():
            send_bytes(connection, content)
        try:
            attach = receive(connection, Attach)
        except GreetingError:
            if files:  # it came for them alone
                return
            raise
        if attach.layout != self._manifest.layout:
            raise RefusedError(
                f"layout {attach.layout}, the engine's is {self._manifest.layout}: use one version at both ends"
            )
        with ExitStack() as held:
            ring = held.enter_context(self._ring(attach.ring))
            # Left first: from then on nothing of this frontend can be written.
            endpoint = held.enter_context(closing(Endpoint(self._port)))
            send(connection, self._attached(endpoint, attach, ring))
            self._say(f"{host} has ring {ring}")
            why = self._until_it_ends(connection, endpoint)
            _shut(connection)  # so that the frontend hears of it before its operations fail
        self._note(why, host, f"its ring {ring} is free again, what it left is ended")

    def _checked(self, hello: Hello) -> str:
        """The ring library for a frontend that may come in. Raises RefusedError."""
        if not hmac.compare_digest(hello.key.encode(), self._key):
            raise RefusedError("the key is not that of nic.gate.key_file")
        if hello.protocol != PROTOCOL:
            raise RefusedError(f"protocol {hello.protocol}, the engine's is {PROTOCOL}: use one version at both ends")
        library = ring_library(self._manifest, platform.machine(), hello.machine)
        if library is None:
            raise RefusedError(f"the bundle has no ring library for {hello.machine}")
        return library

    @contextmanager
    def _ring(self, wanted: int | None) -> Iterator[int]:
        """A ring that nobody holds, held until the block ends; then its claim is ended. Raises RefusedError."""
        rings = self._manifest.plan.rings.rings
        for ring in range(rings) if wanted is None else [wanted]:
            if ring < rings and (lock := self._claims.hold(ring)) is not None:
                try:
                    yield ring
                finally:
                    self._claims.let_go(ring, lock)
                return
        if wanted is not None and wanted >= rings:
            raise RefusedError(f"ring {wanted}: there are {rings}, numbered from 0; raise nic.rings")
        used = "every ring is in use; raise nic.rings" if wanted is None else f"ring {wanted} is in use"
        raise RefusedError(used, later=True)

    def _attached(self, endpoint: Endpoint, attach: Attach, ring: int) -> Attached:
        """The ring's memory lent to its frontend, and the engine's status to be read."""
        layout = abi.view("RingMemory", self._manifest.plan)
        each = layout.rings.size // self._manifest.plan.rings.rings
        status = self._memory.lend(endpoint, layout.status.offset, layout.status.size)
        region = self._memory.lend(endpoint, layout.rings.offset + ring * each, each, writable=True)
        endpoint.connect(attach.peer)
        return Attached(ring=ring, peer=endpoint.peer, memory=region, status=status)

    def _until_it_ends(self, connection: ssl.SSLSocket, endpoint: Endpoint) -> str:
        """Wait until the frontend goes, or has to; why, in a word."""
        connection.settimeout(0)
        while True:
            ready = _readable(connection, self._closed, timeout_s=_WATCH_S)
            if self._closed in ready:
                return "stopping"
            if connection in ready:
                # It has nothing to say any more: a frontend that speaks is none.
                try:
                    return "talking" if connection.recv(1) else "left"
                except ssl.SSLWantReadError:
                    pass
                except OSError:
                    return "gone"
            if not endpoint.is_sound():
                return "beyond"

    def _note(self, why: str, host: str, text: str) -> None:
        """Count it, and say it, but of what strangers do no more than a line a second."""
        self._ends[why] += 1
        now = time.monotonic()
        if why in _STRANGE and now - self._said.get(why, -math.inf) < _PAUSE_S:
            return
        self._said[why] = now
        self._say(f"frontend {host}: {_ENDS.get(why, why)} ({self._ends[why]} so far): {text}")


_ENDS = {
    "refused": "refused",
    "greeting": "not let in",
    "failed": "not let in, which nobody had foreseen",
    "accept": "not accepted",
    "left": "has left",
    "gone": "lost",
    "talking": "cut off for what it said",
    "beyond": "cut off, its queue pair has failed",
    "stopping": "the engine stops",
}


def _readable(*files: socket.socket | int, timeout_s: float | None = None) -> list[socket.socket | int]:
    """Those of `files` that can be read, or are at their end; of any number, which select() could not say."""
    poll = select.poll()
    numbers = {file if isinstance(file, int) else file.fileno(): file for file in files}
    for number in numbers:
        poll.register(number, select.POLLIN)
    return [numbers[number] for number, _ in poll.poll(None if timeout_s is None else 1e3 * timeout_s)]


def _shut(connection: socket.socket) -> None:
    """End a connection under the thread that uses it; not as TLS would, which that thread is in."""
    with suppress(OSError):
        socket.socket.shutdown(connection, socket.SHUT_RDWR)
