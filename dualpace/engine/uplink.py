"""How a frontend on another host comes to its ring: through the gate of the engine's host."""

import platform
import socket
import ssl
from contextlib import ExitStack
from pathlib import Path

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
from dualpace.plan.manifest import HOST_RING, MANIFEST, Manifest

# Of all the files together: a tokenizer has tens of megabytes.
_MOST_BYTES = 1 << 30


class LaterError(RingError):
    """An engine that is not there yet, or whose rings others have."""


class Uplink:
    """To one gate, through one port of a device. `traffic` is of all connections that there have been."""

    def __init__(
        self, host: str, gate_port: int, key: bytes, authority: str | None, port: Port, folder: Path, ring: int | None
    ) -> None:
        """`authority` is a PEM file that the gate's certificate is checked with, the system's ones without.

        `folder` is for what the engine sends and for copies of rings. Without a `ring` any will do.
        """
        self._address, self._key, self._port, self._folder, self._ring = (host, gate_port), key, port, folder, ring
        self.traffic = Traffic()
        try:
            self._tls = ssl.create_default_context(cafile=authority)
        except OSError as error:
            raise RingError(f"{authority}: {error.strerror or error}; name a PEM file with --ca") from error

    @property
    def bundle(self) -> Path:
        """What the frontend needs of the engine's bundle, itself a bundle, once it was fetched."""
        return self._folder / "bundle"

    def fetch(self) -> Manifest:
        """Bring the bundle. Raises RingError, LaterError for what may pass."""
        connection, welcome = self._greet("")
        with connection:
            if sum(welcome.files.values()) > _MOST_BYTES:
                raise RingError(
                    f"the engine sends {sum(welcome.files.values())} bytes, {_MOST_BYTES} are taken at most"
                )
            try:
                for name, size in welcome.files.items():
                    self._place(name).write_bytes(receive_bytes(connection, size))
            except (OSError, GreetingError) as error:
                raise LaterError(self._about(error)) from error
        try:
            self._manifest = Manifest.model_validate_json((self.bundle / MANIFEST).read_bytes())
        except (OSError, ValueError) as error:
            raise RingError("the engine's bundle is of another version of dualpace: use one at both ends") from error
        return self._manifest

    def _place(self, name: str) -> Path:
        path = self.bundle / name
        if not path.resolve().is_relative_to(self.bundle.resolve()):
            raise RingError(f"the engine sends a file {name}, outside its folder")
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def claim(self) -> FrontendRing:
        """A ring of the engine, in an epoch of its own. Raises RingError, LaterError for what may pass."""
        connection, welcome = self._greet(self._manifest.digest)
        with ExitStack() as held:
            held.enter_context(connection)
            if welcome.digest != self._manifest.digest:
                raise ReplacedError("the engine serves another bundle than before: the frontend has to start again")
            try:
                ring = self._attach(connection, held)
            except RefusedError as error:
                raise (LaterError if error.later else RingError)(self._about(error)) from error
            except (OSError, GreetingError) as error:
                raise LaterError(self._about(error)) from error
            except (LinkError, RingMemoryError) as error:
                raise RingError(self._about(error)) from error
            held.pop_all()
            return ring

    def _attach(self, connection: ssl.SSLSocket, held: ExitStack) -> FrontendRing:
        plan = self._manifest.plan
        endpoint = Endpoint(self._port, self.traffic)
        held.callback(endpoint.close)
        send(connection, Attach(layout=layout_hash(plan), ring=self._ring, peer=endpoint.peer))
        attached = receive(connection, Attached)
        endpoint.connect(attached.peer)
        connection.settimeout(0)
        transport = RdmaTransport(Connection(connection, endpoint, attached), plan, self._folder, self.traffic)
        held.callback(transport.close)
        return FrontendRing(self.bundle / HOST_RING, transport.path, attached.ring, transport)

    def _greet(self, digest: str) -> tuple[ssl.SSLSocket, Welcome]:
        try:
            plain = socket.create_connection(self._address, HANDSHAKE_S)
        except OSError as error:
            raise LaterError(self._about(error)) from error
        with ExitStack() as held:
            held.enter_context(plain)
            try:
                keep_alive(plain)
                connection = held.enter_context(self._tls.wrap_socket(plain, server_hostname=self._address[0]))
                hello = Hello(protocol=PROTOCOL, key=self._key.decode(), machine=platform.machine(), digest=digest)
                send(connection, hello)
                welcome = receive(connection, Welcome)
            except ssl.SSLCertVerificationError as error:
                raise RingError(f"{self._about(error)}; --ca FILE trusts the certificate in FILE") from error
            except RefusedError as error:
                raise RingError(self._about(error)) from error
            except (OSError, GreetingError) as error:
                raise LaterError(self._about(error)) from error
            held.pop_all()
            return connection, welcome

    def _about(self, error: Exception) -> str:
        host, port = self._address
        return f"the engine at {host}:{port}: {error}"
