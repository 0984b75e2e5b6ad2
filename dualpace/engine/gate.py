"""Where frontends of other hosts come in: the engine's end of their connections.

A frontend writes its requests and reads its tokens with one-sided operations; no request and no
token makes anything run here.
The gate greets a frontend, gives it a ring of its own, and from then on waits for it to go. To the engine it looks like
a frontend of this host: it holds the lock of the ring while the connection lives. It lets go once nothing more can be
written, and what the frontend left is ended.
"""

import hmac
import os
import platform
import select
import socket
import ssl
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Protocol

from dualpace.address import bound
from dualpace.engine.claims import Claims
from dualpace.engine.greeting import (
    HANDSHAKE_S,
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
)
from dualpace.engine.link import LinkError, Port, Region
from dualpace.engine.verbs import Endpoint
from dualpace.plan import abi
from dualpace.plan.manifest import BundleError, HardwareError, Manifest, frontend_files, ring_library
from dualpace.plan.nic_key import read_key
from dualpace.plan.plan import Nic

# How often a connection is looked at whose peer says nothing, which is all of them.
_WATCH_S = 1.0
_BEYOND_RINGS = 8  # greetings at once, of frontends that may have to be refused


class Lender(Protocol):
    """The ring memory, wherever it is."""

    def lend(self, endpoint: Endpoint, offset: int, size: int, *, writable: bool = False) -> Region:
        """Let the peer of `endpoint` read a part of it, or write too. Raises LinkError."""


class Gate:
    """A listening socket, a thread that accepts and one for each frontend."""

    def __init__(
        self, bundle: Path, manifest: Manifest, nic: Nic, memory: Lender, claims: Claims, say: Callable[[str], None]
    ) -> None:
        """Open it over `memory`. Raises BundleError, HardwareError where device or address cannot be had."""
        self._bundle, self._manifest, self._nic = bundle, manifest, nic
        self._memory, self._claims, self._say = memory, claims, say
        self._port = Port(nic.device, nic.port, nic.gid_index)
        self._key = read_key(nic.key_file)
        self._tls = _tls(nic)
        self._ends: Counter[str] = Counter()
        self._places = threading.BoundedSemaphore(manifest.plan.rings.rings + _BEYOND_RINGS)
        self._threads: set[threading.Thread] = set()
        self._closed, self._wake = os.pipe2(os.O_CLOEXEC)
        try:
            Endpoint(self._port).close()  # says now what is wrong with the device
            self._listener = bound(nic.gate_host, nic.gate_port)
        except (LinkError, OSError) as error:
            raise HardwareError(
                f"frontends cannot come in at {nic.gate_host}:{nic.gate_port} through {nic.device}: {error}"
            ) from error
        self._listener.listen()
        self.address = self._listener.getsockname()[:2]
        say(f"frontends come in at {self.address[0]}:{self.address[1]}, through {nic.device}")
        self._start(self._accept)

    def close(self) -> None:
        """End all connections, and what their frontends left."""
        os.close(self._wake)
        for thread in tuple(self._threads):
            thread.join()
        self._listener.close()
        os.close(self._closed)

    def _start(self, target: Callable[..., None], *arguments: object) -> None:
        thread = threading.Thread(target=target, args=arguments, name="gate", daemon=True)
        self._threads.add(thread)
        thread.start()

    def _accept(self) -> None:
        while self._closed not in _readable(self._listener, self._closed):
            connection, (host, *_) = self._listener.accept()
            if self._places.acquire(blocking=False):
                self._start(self._serve, connection, host)
            else:
                connection.close()

    def _serve(self, plain: socket.socket, host: str) -> None:
        """Greet a frontend and keep its connection until it ends."""
        try:
            plain.settimeout(HANDSHAKE_S)
            keep_alive(plain)
            with self._tls.wrap_socket(plain, server_side=True) as connection:
                try:
                    self._admit(connection, host)
                except RefusedError as refusal:
                    self._note("refused", host, str(refusal))
                    send(connection, Refused(reason=str(refusal), later=refusal.later))
        except (OSError, GreetingError, LinkError) as error:
            self._note("greeting", host, str(error))
        finally:
            plain.close()
            self._places.release()
            self._threads.discard(threading.current_thread())

    def _admit(self, connection: ssl.SSLSocket, host: str) -> None:
        hello = receive(connection, Hello)
        library = self._checked(hello)
        files = {} if hello.digest == self._manifest.digest else self._files(library)
        sizes = {name: len(content) for name, content in files.items()}
        send(connection, Welcome(digest=self._manifest.digest, layout=self._manifest.layout, files=sizes))
        for content in files.values():
            connection.sendall(content)
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
            endpoint = held.enter_context(_closing(Endpoint(self._port)))
            send(connection, self._attached(endpoint, attach, ring))
            self._say(f"{host} has ring {ring}")
            why = self._until_it_ends(connection, endpoint)
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

    def _files(self, library: str) -> dict[str, bytes]:
        return frontend_files(self._bundle, self._manifest, library)

    @contextmanager
    def _ring(self, wanted: int | None) -> Iterator[int]:
        """A ring that nobody holds, held until the block ends; then its claim is ended. Raises RefusedError."""
        rings = self._manifest.plan.rings.rings
        for ring in range(rings) if wanted is None else [wanted]:
            if ring < rings and (lock := self._claims.hold(ring)) is not None:
                try:
                    yield ring
                finally:
                    os.close(lock)
                    self._claims.end_dead()
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
                with suppress(ssl.SSLWantReadError):
                    try:
                        return "talking" if connection.recv(1) else "left"
                    except OSError:
                        return "gone"
            if not endpoint.is_sound():
                return "beyond"

    def _note(self, why: str, host: str, text: str) -> None:
        self._ends[why] += 1
        self._say(f"frontend {host}: {_ENDS.get(why, why)} ({self._ends[why]} so far): {text}")


_ENDS = {
    "refused": "refused",
    "greeting": "not let in",
    "left": "has left",
    "gone": "lost",
    "talking": "cut off for what it said",
    "beyond": "cut off, its queue pair has failed",
    "stopping": "the engine stops",
}


def _readable(*files: socket.socket | int, timeout_s: float | None = None) -> list[socket.socket | int]:
    ready, _, _ = select.select(files, [], [], timeout_s)
    return ready


@contextmanager
def _closing(endpoint: Endpoint) -> Iterator[Endpoint]:
    try:
        yield endpoint
    finally:
        endpoint.close()


def _tls(nic: Nic) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(nic.tls_certificate, nic.tls_key, password="")
    except OSError as error:
        why = "it is no PEM certificate with its key" if isinstance(error, ssl.SSLError) else error.strerror
        raise BundleError(
            f"nic.gate.tls {nic.tls_certificate} and {nic.tls_key}: {why}; mount them or change the spec"
        ) from error
    return context
