"""The frontend's process: `python -m dualpace.appliance.server BUNDLE --rings FILE`."""

import argparse
import asyncio
import contextlib
import gc
import logging
import math
import os
import resource
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import FrameType

import uvicorn
from starlette.types import ASGIApp

from dualpace.address import bound, refused, shown
from dualpace.appliance.app import create_app
from dualpace.appliance.deployment import Deployment, load
from dualpace.appliance.dispatch import Dispatcher
from dualpace.appliance.errors import unavailable
from dualpace.appliance.ledger import Ledger
from dualpace.appliance.log import log_to
from dualpace.appliance.protocol import Protocol
from dualpace.appliance.spouts import Spouts
from dualpace.appliance.tally import Tally
from dualpace.engine.certificate import Certificate
from dualpace.engine.ring import FrontendRing, RingError
from dualpace.engine.traffic import Traffic
from dualpace.plan.manifest import HOST_RING, BundleError

# Between the end of draining and the end of the process, for streams to say that they were cut short.
FAREWELL_S = 1
BACKLOG = 2048
# How often the port file is touched, which tells who started this process that its event loop runs.
PULSE_S = 1.0
# Longer than clients keep an idle connection, so that it is theirs to close and no request meets a closing one.
KEEP_ALIVE_S = 75
# After so long without room at the client, the kernel gives a connection up with what waits in its buffers.
UNREAD_S = 60
# What the garbage collector lets come together before it looks, which then takes half a millisecond.
YOUNG_OBJECTS = 10_000
# How often the certificate's files are looked at for changes.
CERTIFICATE_LOOK_S = 10.0

logger = logging.getLogger(__name__)


def configuration(app: ASGIApp, drain: float, certificate: Certificate | None = None) -> uvicorn.Config:
    """How `app` is served. Draining takes `drain` seconds at most."""
    return uvicorn.Config(
        app,
        loop="uvloop",
        http=Protocol,
        ws="none",
        lifespan="on",
        log_config=None,
        log_level="error",
        access_log=False,
        server_header=False,
        backlog=BACKLOG,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=math.ceil(drain) + FAREWELL_S,
        ssl_context_factory=(lambda *_: certificate.context) if certificate else None,
    )


class Server(uvicorn.Server):
    """Drains at the first SIGINT or SIGTERM; exits at once at the second."""

    def __init__(
        self,
        deployment: Deployment,
        dispatcher: Dispatcher,
        listener: socket.socket,
        port_file: Path | None,
        certificate: Certificate | None,
        ledger: Ledger,
    ) -> None:
        self._certificate = certificate
        self._deployment = deployment
        self._dispatcher = dispatcher
        self._listener = listener
        self._port_file = port_file
        self._drain = deployment.plan.serving.drain
        super().__init__(configuration(create_app(deployment, dispatcher, ledger), self._drain, certificate))

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen, and say so."""
        await super().startup(sockets)
        host, port = self._listener.getsockname()[:2]
        logger.info(describe(self._deployment, host, port))
        if self._port_file:
            self._port_file.write_text(f"{port}\n")
            self._beat(asyncio.get_running_loop(), self._port_file)
        if self._certificate:
            self._follow(asyncio.get_running_loop(), self._certificate)

    def _beat(self, loop: asyncio.AbstractEventLoop, file: Path) -> None:
        with contextlib.suppress(OSError):  # its folder goes before its last reader does
            os.utime(file)
        loop.call_later(PULSE_S, self._beat, loop, file)

    def _follow(self, loop: asyncio.AbstractEventLoop, certificate: Certificate) -> None:
        certificate.follow()
        loop.call_later(CERTIFICATE_LOOK_S, self._follow, loop, certificate)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Handle signals while serving; the process then ends by itself, with status 0."""
        self._loop = asyncio.get_running_loop()
        previous = {number: signal.signal(number, self.handle_exit) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Start draining, or end."""
        if self.should_exit:
            os._exit(128 + sig)
        self.should_exit = True
        self._loop.call_soon_threadsafe(self._begin_drain)

    def _begin_drain(self) -> None:
        logger.info("draining for up to %g s; a second signal exits at once", self._drain)
        reason = "the server is shutting down"
        self._dispatcher.close(reason)
        self._loop.call_later(self._drain, self._dispatcher.fail_all, unavailable(reason))


def describe(deployment: Deployment, host: str, port: int) -> str:
    """The line that says what is served, where, and how it samples by default."""
    model = deployment.generation
    sampling = (
        f"temperature {model.temperature:g}, top_p {model.top_p:g}, top_k {model.top_k}, min_p {model.min_p:g}, "
        f"repetition_penalty {model.repetition_penalty:g}"
    )
    scheme = "https" if deployment.plan.serving.tls_certificate else "http"
    return (
        f"serving {deployment.name} at {scheme}://{shown(host, port)}/v1, "
        f"context limit {deployment.max_context} tokens, sampling by default with {sampling}"
    )


def listen(host: str, port: int, *, shared: bool = False) -> socket.socket:
    """A bound TCP socket, whose options its connections inherit; see `bound`."""
    listener = bound(host, port, shared=shared)
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 1000 * UNREAD_S)
    return listener


def arguments_of(parser: argparse.ArgumentParser) -> argparse.Namespace:
    """The command line, with what every frontend is told."""
    parser.add_argument("--host", help="address to listen on; the plan's by default")
    parser.add_argument("--port", type=int, help="TCP port, 0 picks one; the plan's by default")
    parser.add_argument(
        "--port-file",
        type=Path,
        help="a file to write the port into, as a line, once it listens, and to touch each second",
    )
    return parser.parse_args()


def main() -> int:
    """Serve a bundle until told to stop. Returns the process's exit status: 0 drained, 2 could not start."""
    parser = argparse.ArgumentParser(prog="dualpace.appliance.server", description="Serve a bundle over HTTP.")
    parser.add_argument("bundle", type=Path, help="the folder that `dualpace build` wrote")
    parser.add_argument("--rings", type=Path, required=True, help="the engine's ring memory, a file")
    parser.add_argument("--ring", type=int, default=0, help="this frontend's ring")
    parser.add_argument("--share-port", action="store_true", help="let other frontends listen on the same port")
    arguments = arguments_of(parser)
    claim = partial(FrontendRing, arguments.bundle / HOST_RING, arguments.rings, arguments.ring)
    log_to(sys.stderr, {"frontend": arguments.ring})
    with complaining() as status:
        run(arguments, arguments.bundle, claim, arguments.rings, arguments.ring, share_port=arguments.share_port)
    return status.code


@dataclass
class Status:
    """The exit status of the process."""

    code: int = 0


@contextlib.contextmanager
def complaining() -> Iterator[Status]:
    """Say in a line why a frontend could not start, where that was foreseen."""
    status = Status()
    try:
        yield status
    except (BundleError, RingError, OSError) as error:
        sys.stderr.write(f"dualpace: {error}\n")
        sys.stderr.flush()
        status.code = 2


def run(
    arguments: argparse.Namespace,
    bundle: Path,
    claim: Callable[[], FrontendRing],
    beside: Path,
    ring: int,
    *,
    share_port: bool = False,
    traffic: Traffic | None = None,
) -> None:
    """Serve until told to stop. `beside` is what the files that frontends share lie beside.

    Raises BundleError, RingError, or OSError with a message for people.
    """
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    deployment = load(bundle)
    plan, serving = deployment.plan, deployment.plan.serving
    tls = serving.tls_certificate, serving.tls_key
    certificate = Certificate("serving.tls", *tls) if all(tls) else None
    host = arguments.host or serving.host
    port = serving.port if arguments.port is None else arguments.port
    try:
        tally = Tally(beside, ring)
        claimed = claim()
        ledger = Ledger(beside, ring, 1 if traffic else plan.rings.rings)
    except OSError as error:
        raise OSError(f"{error.filename}: {error.strerror}; the folder of the rings has to be writable") from error
    try:
        listener = listen(host, port, shared=share_port)
    except OSError as error:
        claimed.close()
        raise OSError(refused(host, port, error)) from error
    dispatcher = Dispatcher(
        claimed,
        plan.schedule,
        claim,
        frontends=plan.rings.rings,
        tally=tally,
        traffic=traffic,
        spouts=Spouts(bundle / HOST_RING, tally),
    )
    server = Server(deployment, dispatcher, listener, arguments.port_file, certificate, ledger)
    # What is there now stays: the collector need not look at it again and again. Nor at what requests under way have,
    # each time that a few of them come: almost all that they leave goes without it.
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS)
    server.run(sockets=[listener])


if __name__ == "__main__":
    sys.exit(main())
