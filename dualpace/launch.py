"""An engine and its frontends, one a ring, as processes that share a ring file and nothing else.

The command line starts serving through this; it imports nothing of the serving side.
"""

import ctypes
import http.client
import math
import os
import select
import signal
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self

from dualpace.address import bound, refused, shown
from dualpace.exits import REFUSALS, Exit
from dualpace.plan.abi import fixed_view
from dualpace.plan.manifest import Manifest
from dualpace.process import die_with
from dualpace.run_folder import RunFolder

ENGINE = "dualpace.engine"
FRONTEND = "dualpace.appliance.server"
ENGINE_STOP_SECONDS = 10.0
FRONTEND_STOP_SECONDS = 5.0  # beyond `serving.drain`
POLL_SECONDS = 0.05
PROBE_SECONDS = 1.0
# A frontend tells that its event loop runs by touching the file of its port, each second. One that has not at so many
# looks in a row, each as long after the one before, hangs: it is killed, and started again.
PULSE_SECONDS = 1.0
HUNG_LOOKS = 10
# An engine that fails is started again, unless it has been before and has not served for this long since. A frontend
# always is, but not sooner than this after the last time.
RESTART_SECONDS = 30.0
_STATUS = fixed_view("EngineStatus")
_ANY_ADDRESS = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}


class LaunchError(Exception):
    """A deployment that cannot be served, or an engine or frontend that ended by itself.

    `code` is one of REFUSALS where the input was refused, rather than that something failed.
    """

    def __init__(self, message: str, code: Exit = Exit.INTERNAL) -> None:
        super().__init__(message)
        self.code = code


@dataclass(eq=False)
class _Child:
    """A process of an appliance, called `name` where it is spoken of; `process` is None while it is not there."""

    name: str
    module: str
    arguments: tuple[str, ...] = ()
    process: subprocess.Popen[bytes] | None = None
    restarted: float = -math.inf
    # When the file of its port was touched, and how many looks have found it so.
    pulse: int = 0
    looks: int = 0


class Appliance:
    """A running deployment. Leaving the context drains the frontends, then stops the engine; no process outlives it.

    `host` and `port` are where the frontends listen; port 0 takes a free one, known once it has started. `threads` 0
    leaves the number to the engine. With RDMA the frontends are on other hosts, and neither is used. With `quiet` what
    the processes write is kept for the message of a failure instead of shown.
    """

    def __init__(
        self, bundle: Path, manifest: Manifest, host: str, port: int, threads: int = 0, quiet: bool = False
    ) -> None:
        self.host = host
        self.port = port
        self.drain = manifest.plan.serving.drain
        self._scheme = "https" if manifest.plan.serving.tls_certificate else "http"
        self._bundle = bundle
        self._quiet = quiet
        self._engine = _Child(ENGINE, ENGINE, ("--threads", str(threads)) if threads else ())
        # Those of other hosts are started there.
        self.gate = manifest.plan.nic
        rings = 0 if self.gate else manifest.plan.rings.rings
        self._frontends = [
            _Child(FRONTEND if rings == 1 else f"{FRONTEND} {ring}", FRONTEND, ("--ring", str(ring)))
            for ring in range(rings)
        ]
        self._served_since: float | None = None

    @property
    def address(self) -> tuple[str, int]:
        """Where a client of this machine connects."""
        return _ANY_ADDRESS.get(self.host, self.host), self.port

    @property
    def url(self) -> str:
        """The same as a URL."""
        return f"{self._scheme}://{shown(*self.address)}"

    def connection(self) -> http.client.HTTPConnection:
        """A connection to a frontend, not made yet. Its certificate is not checked: it is one's own."""
        if self._scheme == "http":
            return http.client.HTTPConnection(*self.address, timeout=PROBE_SECONDS)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        return http.client.HTTPSConnection(*self.address, timeout=PROBE_SECONDS, context=context)

    def __enter__(self) -> Self:
        self._folder = RunFolder()
        self._rings = self._folder.path / "rings"
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            _stop(self._frontends, self.drain + FRONTEND_STOP_SECONDS)
            _stop([self._engine], ENGINE_STOP_SECONDS)
        finally:
            for child in (self._engine, *self._frontends):
                if child.process is not None:
                    child.process.kill()
                    child.process.wait()
            self._folder.close()

    def start(self, say: Callable[[str], None]) -> None:
        """Start all processes and wait until requests are served. Raises LaunchError if one of them ends."""
        say("start the engine")
        self._spawn(self._engine)
        self._wait_until(self._rings.exists)
        if self.gate:
            say("load the model")
            self._wait_until(self._ready)
            self._served_since = time.monotonic()
            return
        say("start the frontend" if len(self._frontends) == 1 else f"start {len(self._frontends)} frontends")
        try:
            # Frontends share the port with each other; nobody else may have it.
            reserved = bound(self.host, self.port)
        except OSError as error:
            raise LaunchError(refused(self.host, self.port, error), Exit.USAGE) from error
        with reserved:
            self.port = reserved.getsockname()[1]
            for frontend in self._frontends:
                self._spawn_frontend(frontend)
            # Until it listens, whatever answers there is not this frontend.
            self._wait_until(lambda: all(map(Path.exists, map(self._port_file, self._frontends))))
        self._folder.tell(self.url)
        say("load the model")
        self._wait_until(self._healthy)
        self._served_since = time.monotonic()

    def wait(self, say: Callable[[str], None]) -> None:
        """Wait until a process ends that is not started again, and raise LaunchError that says which and how.

        An engine that fails is started again: the frontends, which have ended what that one left, find the new one. So
        is a frontend, whatever the others are doing: the engine has ended what that one left.
        """
        looked = time.monotonic()
        while True:
            ended = self._ended(self._patience())
            if ended is self._engine:
                self._restart_engine(say)
            elif ended is not None:
                say(f"{self._failure_of(ended)}; starting it again")
            for frontend in self._frontends:
                if frontend.process is None and time.monotonic() >= frontend.restarted + RESTART_SECONDS:
                    frontend.restarted = time.monotonic()
                    self._spawn_frontend(frontend)
            if self._served_since is None and (self._ready() if self.gate else self._healthy()):
                self._served_since = time.monotonic()
            if time.monotonic() >= looked + PULSE_SECONDS:
                looked = time.monotonic()
                self._end_hung_frontends(say)

    def _end_hung_frontends(self, say: Callable[[str], None]) -> None:
        for frontend in self._frontends:
            file = self._port_file(frontend)
            pulse = file.stat().st_mtime_ns if file.exists() else 0
            frontend.looks = frontend.looks + 1 if pulse == frontend.pulse else 0
            frontend.pulse = pulse
            if pulse and frontend.process is not None and frontend.looks >= HUNG_LOOKS:
                say(f"{frontend.name} has not moved for {HUNG_LOOKS * PULSE_SECONDS:g} s; ending it")
                frontend.process.kill()

    def _restart_engine(self, say: Callable[[str], None]) -> None:
        failure = self._failure_of(self._engine)
        steady = self._served_since is not None and time.monotonic() - self._served_since >= RESTART_SECONDS
        if self._engine.restarted > -math.inf and not steady:
            raise failure
        say(f"{failure}; starting it again")
        self._engine.restarted = time.monotonic()
        self._served_since = None
        self._spawn(self._engine)

    def _patience(self) -> float:
        """Seconds for which the processes may be waited for before something else is due."""
        return POLL_SECONDS if self._served_since is None else PULSE_SECONDS

    def _wait_until(self, done: Callable[[], bool]) -> None:
        while not done():
            if ended := self._ended(POLL_SECONDS):
                raise self._end_of(ended)

    def _ended(self, seconds: float) -> _Child | None:
        """A process that is found to have ended within so many seconds."""
        children = (self._engine, *self._frontends)
        handles = {os.pidfd_open(child.process.pid): child for child in children if child.process is not None}
        try:
            ended, _, _ = select.select(list(handles), [], [], seconds)
            return handles[ended[0]] if ended else None
        finally:
            for handle in handles:
                os.close(handle)

    def _failure_of(self, child: _Child) -> LaunchError:
        """How a process ended that can be started again. Raises it if it cannot: it refused its input or was asked."""
        assert child.process is not None
        error = self._end_of(child)
        if error.code in REFUSALS or (child is self._engine and child.process.returncode == 0):
            raise error
        child.process = None
        return error

    def _end_of(self, child: _Child) -> LaunchError:
        assert child.process is not None
        code = child.process.wait()
        how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit status {code}"
        output = self._log(child).read_text(errors="replace").strip() if self._quiet else ""
        refusal = Exit(code) if code in REFUSALS else Exit.INTERNAL
        return LaunchError("\n".join(filter(None, (output, f"{child.name} {how}"))), refusal)

    def _spawn_frontend(self, child: _Child) -> None:
        self._port_file(child).unlink(missing_ok=True)
        child.pulse = child.looks = 0
        where = ("--host", self.host, "--port", str(self.port), "--share-port")
        self._spawn(child, *where, "--port-file", str(self._port_file(child)))

    def _spawn(self, child: _Child, *arguments: str) -> None:
        # A group of its own keeps the terminal's Ctrl-C from reaching the engine before the frontend has drained.
        output = self._log(child).open("wb") if self._quiet else None
        try:
            child.process = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    child.module,
                    self._bundle,
                    "--rings",
                    self._rings,
                    *child.arguments,
                    *arguments,
                ],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                process_group=0,
                pass_fds=(self._folder.lock,),
                preexec_fn=partial(die_with, os.getpid()),
            )
        finally:
            if output:
                output.close()

    def _log(self, child: _Child) -> Path:
        return self._folder.path / f"{child.name}.log"

    def _port_file(self, child: _Child) -> Path:
        return self._folder.path / f"{child.name}.port"

    def _ready(self) -> bool:
        """Whether the engine says so itself."""
        try:
            with self._rings.open("rb") as rings:
                rings.seek(ctypes.sizeof(fixed_view("MemoryHeader")))
                status = rings.read(ctypes.sizeof(_STATUS))
        except FileNotFoundError:
            return False
        return len(status) == ctypes.sizeof(_STATUS) and bool(_STATUS.from_buffer_copy(status).ready)

    def _healthy(self) -> bool:
        connection = self.connection()
        try:
            connection.request("GET", "/health")
            return connection.getresponse().status == http.HTTPStatus.OK
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()


def _stop(children: Sequence[_Child], seconds: float) -> None:
    """Ask processes to end, and kill those that have not after so many seconds."""
    running = [child.process for child in children if child.process is not None]
    for process in running:
        process.terminate()
    deadline = time.monotonic() + seconds
    for process in running:
        try:
            process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()


def end_on_signals() -> None:
    """Make the signals that ask a process to end raise KeyboardInterrupt, so that contexts are left in order."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)
