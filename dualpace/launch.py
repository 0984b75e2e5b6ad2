"""An engine and its frontend as two processes that share a ring file and nothing else.

The command line starts serving through this; it imports nothing of the serving side.
"""

import ctypes
import http.client
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self

from dualpace.plan.manifest import Manifest
from dualpace.run_folder import RunFolder

ENGINE = "dualpace.engine"
FRONTEND = "dualpace.appliance.server"
USAGE = 2  # exit status of a process that refuses its input
ENGINE_STOP_SECONDS = 10.0
FRONTEND_STOP_SECONDS = 5.0  # beyond `serving.drain`
POLL_SECONDS = 0.05
# An engine that fails is started again, but not one that has failed as soon as this after it served.
RESTART_SECONDS = 30.0
_PR_SET_PDEATHSIG = 1
_ANY_ADDRESS = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}


class LaunchError(Exception):
    """A deployment that cannot be served, or an engine or frontend that ended by itself.

    `usage` says that the input was refused, rather than that something failed.
    """

    def __init__(self, message: str, usage: bool = False) -> None:
        super().__init__(message)
        self.usage = usage


class Appliance:
    """A running deployment. Leaving the context drains the frontend, then stops the engine; no process outlives it.

    `host` and `port` are where the frontend listens; port 0 takes a free one, known once it has started. `threads` 0
    leaves the number to the engine. With `quiet` what the processes write is kept for the message of a failure instead
    of shown.
    """

    def __init__(
        self, bundle: Path, manifest: Manifest, host: str, port: int, threads: int = 0, quiet: bool = False
    ) -> None:
        self.host = host
        self.port = port
        self.drain = manifest.plan.serving.drain
        self._bundle = bundle
        self._threads = threads
        self._quiet = quiet
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    @property
    def address(self) -> tuple[str, int]:
        """Where a client of this machine connects."""
        return _ANY_ADDRESS.get(self.host, self.host), self.port

    @property
    def url(self) -> str:
        """The same as a URL."""
        host, port = self.address
        return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

    def __enter__(self) -> Self:
        self._folder = RunFolder()
        self._rings = self._folder.path / "rings"
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._stop(FRONTEND, self.drain + FRONTEND_STOP_SECONDS)
            self._stop(ENGINE, ENGINE_STOP_SECONDS)
        finally:
            for process in self._processes.values():
                process.kill()
                process.wait()
            self._folder.close()

    def start(self, say: Callable[[str], None]) -> None:
        """Start both processes and wait until requests are served. Raises LaunchError if one of them ends."""
        say("start the engine")
        self._start_engine()
        self._wait_until(self._rings.exists)
        say("start the frontend")
        port = self._folder.path / "port"
        self._spawn(FRONTEND, "--host", self.host, "--port", str(self.port), "--port-file", str(port))
        # Until it listens, whatever answers there is not this frontend.
        self._wait_until(lambda: port.exists() and port.read_text().endswith("\n"))
        self.port = int(port.read_text())
        say("load the model")
        self._wait_until_served()

    def wait(self, say: Callable[[str], None]) -> None:
        """Wait until a process ends that is not started again, and raise LaunchError that says which and how.

        An engine that fails is started again; the frontend, which has ended what that one left, finds the new one.
        """
        while True:
            try:
                self._wait_until(lambda: False, None)
            except LaunchError as error:
                engine = self._processes[ENGINE].poll()
                served = time.monotonic() - self._served_since
                if engine in (None, 0, USAGE) or served < RESTART_SECONDS:
                    raise
                say(f"{error}; starting it again")
                self._start_engine()
                self._wait_until_served()

    def _wait_until_served(self) -> None:
        self._wait_until(self._healthy)
        self._served_since = time.monotonic()

    def _start_engine(self) -> None:
        threads = ("--threads", str(self._threads)) if self._threads else ()
        self._spawn(ENGINE, *threads)

    def _wait_until(self, done: Callable[[], bool], poll: float | None = POLL_SECONDS) -> None:
        handles = {os.pidfd_open(process.pid): name for name, process in self._processes.items()}
        try:
            while not done():
                ended, _, _ = select.select(list(handles), [], [], poll)
                if ended:
                    raise self._end_of(handles[ended[0]])
        finally:
            for handle in handles:
                os.close(handle)

    def _end_of(self, name: str) -> LaunchError:
        code = self._processes[name].wait()
        how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit status {code}"
        output = self._log(name).read_text(errors="replace").strip() if self._quiet else ""
        return LaunchError("\n".join(filter(None, (output, f"{name} {how}"))), usage=code == USAGE)

    def _spawn(self, module: str, *arguments: str) -> None:
        # A group of its own keeps the terminal's Ctrl-C from reaching the engine before the frontend has drained.
        output = self._log(module).open("wb") if self._quiet else None
        try:
            self._processes[module] = subprocess.Popen(
                [sys.executable, "-m", module, self._bundle, "--rings", self._rings, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                process_group=0,
                pass_fds=(self._folder.lock,),
                preexec_fn=partial(_die_with, os.getpid()),
            )
        finally:
            if output:
                output.close()

    def _stop(self, module: str, seconds: float) -> None:
        process = self._processes.get(module)
        if process is None or process.poll() is not None:
            return
        process.terminate()
        try:
            process.wait(seconds)
        except subprocess.TimeoutExpired:
            process.kill()

    def _log(self, module: str) -> Path:
        return self._folder.path / f"{module}.log"

    def _healthy(self) -> bool:
        connection = http.client.HTTPConnection(*self.address, timeout=1)
        try:
            connection.request("GET", "/health")
            return connection.getresponse().status == http.HTTPStatus.OK
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()


def end_on_signals() -> None:
    """Make the signals that ask a process to end raise KeyboardInterrupt, so that contexts are left in order."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)


def _die_with(parent: int) -> None:
    """In the child: the death of `parent`, even by SIGKILL, ends it too."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:  # it died before it could be asked for
        os._exit(1)
