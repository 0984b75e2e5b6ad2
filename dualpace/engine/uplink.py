"""How a frontend on another host comes to its ring: through the gate of the engine's host."""

import platform
import socket
import ssl
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from dualpace.address import shown
from dualpace.engine.greeting import (
    HANDSHAKE_S,
    PROTOCOL,
    Attach,
    Attached,
    GreetingError,
    Hello,
    RefusedError,
    Welcome,
    keep_alive,
    receive,
    receive_bytes,
    send,
)
from dualpace.engine.link import LinkError, Port
from dualpace.engine.memory import RingMemoryError
from dualpace.engine.remote import Connection, RdmaTransport
from dualpace.engine.ring import FrontendRing, ReplacedError, RingError
from dualpace.engine.traffic import Traffic
from dualpace.engine.verbs import Endpoint
from dualpace.plan.abi import layout_hash
from dualpace.plan.manifest import HOST_RING, MANIFEST, BundleError, Manifest
from dualpace.plan.nic_key import read_key

# Of all the files together: a tokenizer has tens of megabytes.
_MOST_BYTES = 1 << 30


class LaterError(RingError):
    """An engine that is not there yet, or whose rings others have."""


class Uplink:
    """To one gate, through one port of a device. `traffic` is of all connections that there have been."""

    def __init__(
        self,
        host: str,
        gate_port: int,
        key_file: str,
        authority: str | None,
        port: Port,
        folder: Path,
        ring: int | None,
    ) -> None:
        """`authority` is a PEM file that the gate's certificate is checked with, the system's ones without.

        It and the key are read for each attempt, as they may change. `folder` is for what the engine sends and for
        copies of rings. Without a `ring` any will do.
        """
        self._address, self._key_file, self._authority = (host, gate_port), key_file, authority
        self._port, self._folder, self._ring = port, folder, ring
        self.traffic = Traffic()

    @property
    def bundle(self) -> Path:
        """What the frontend needs of the engine's bundle, itself a bundle, once it was fetched."""
        return self._folder / "bundle"

    def fetch(self) -> Manifest:
        """Bring the bundle. Raises RingError, LaterError for what may pass."""
        with self._attempt() as held:
            connection, welcome = self._greet("", held)
            size = sum(welcome.files.values())
            if size > _MOST_BYTES:
                raise RingError(f"the engine sends {size} bytes, {_MOST_BYTES} are taken at most")
            for name, count in welcome.files.items():
                self._write(name, receive_bytes(connection, count))
            try:
                self._manifest = Manifest.model_validate_json((self.bundle / MANIFEST).read_bytes())
            except (OSError, ValueError) as error:
                raise RingError(
                    "the engine's bundle is of another version of dualpace: use one at both ends"
                ) from error
            return self._manifest

    def _write(self, name: str, content: bytes) -> None:
        path = self.bundle / name
        if not path.resolve().is_relative_to(self.bundle.resolve()):
            raise RingError(f"the engine sends a file {name}, outside its folder")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        except OSError as error:
            raise BundleError(f"{path}: {error.strerror}; the folder has to have room for a tokenizer") from error

    def claim(self) -> FrontendRing:
        """A ring of the engine, in an epoch of its own. Raises RingError, LaterError for what may pass."""
        with self._attempt() as held:
            connection, welcome = self._greet(self._manifest.digest, held)
            if welcome.digest != self._manifest.digest:
                raise ReplacedError("the engine serves another bundle than before: the frontend has to start again")
            plan = self._manifest.plan
            endpoint = Endpoint(self._port, self.traffic)
            held.callback(endpoint.close)
            send(connection, Attach(layout=layout_hash(plan), ring=self._ring, peer=endpoint.peer))
            attached = receive(connection, Attached)
            endpoint.connect(attached.peer)
            connection.settimeout(0)
            transport = RdmaTransport(Connection(connection, endpoint, attached), plan, self._folder, self.traffic)
            held.callback(transport.close)
            ring = FrontendRing(self.bundle / HOST_RING, transport.path, attached.ring, transport)
            held.pop_all()
            return ring

    def _greet(self, digest: str, held: ExitStack) -> tuple[ssl.SSLSocket, Welcome]:
        key = read_key(self._key_file)
        plain = held.enter_context(socket.create_connection(self._address, HANDSHAKE_S))
        keep_alive(plain)
        connection = held.enter_context(self._tls().wrap_socket(plain, server_hostname=self._address[0]))
        send(connection, Hello(protocol=PROTOCOL, key=key.decode(), machine=platform.machine(), digest=digest))
        return connection, receive(connection, Welcome)

    def _tls(self) -> ssl.SSLContext:
        try:
            return ssl.create_default_context(cafile=self._authority)
        except OSError as error:
            raise BundleError(f"{self._authority}: {error.strerror or error}; name a PEM file with --ca") from error

    @contextmanager
    def _attempt(self) -> Iterator[ExitStack]:
        """Count an attempt, and by its cause how it fails; what it `held` then goes, unless it was taken out."""
        self.traffic.attempts += 1
        try:
            with ExitStack() as held:
                yield held
        except RingError as error:
            self.traffic.failures["replaced" if isinstance(error, ReplacedError) else "refused"] += 1
            raise
        except (OSError, GreetingError, LinkError, BundleError, RingMemoryError) as error:
            cause, told = self._cause(error)
            self.traffic.failures[cause] += 1
            raise told from error

    def _cause(self, error: Exception) -> tuple[str, RingError]:
        """Which of FAILURES an error is, and what is said of it."""
        text = f"the engine at {shown(*self._address)}: {error}"
        match error:
            case ssl.SSLCertVerificationError():
                return "tls", RingError(f"{text}; --ca FILE trusts the certificate in FILE")
            case OSError():
                return "tls" if isinstance(error, ssl.SSLError) else "unreachable", LaterError(text)
            case RefusedError():
                return ("busy", LaterError(text)) if error.later else ("refused", RingError(text))
            case GreetingError():
                return "greeting", LaterError(text)
            case LinkError() if error.kind != "device":
                return "link", RingError(text)
        return "local", RingError(str(error))
