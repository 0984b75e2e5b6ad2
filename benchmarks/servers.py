"""Servers of a model beside each other on one machine: how each is started, put on cores, and ended."""

import os
import shlex
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.gpu_engine import cpu_seconds

START_SECONDS = 400.0
STOP_SECONDS = 30.0
ENGINE, FRONTEND = "dualpace.engine", "dualpace.appliance.server"


@dataclass
class Server:
    """A server's processes, which are a session of their own and outlive this one if they are left running.

    `front` is in the command lines of the processes that speak HTTP, where those can be told from the others; `host` in
    that of the process that drives the GPU. `about` is what a result says of it, `settled` whether it has served.
    """

    name: str
    command: Sequence[str]
    port: int
    model: str
    folder: Path
    environment: Mapping[str, str] = field(default_factory=dict)
    front: str = ""
    host: str = ""
    about: Mapping[str, Any] = field(default_factory=dict)
    pid: int = 0
    settled: bool = False

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def log(self) -> Path:
        """What it wrote."""
        return self.folder / f"{self.name}.log"

    @property
    def _state(self) -> Path:
        return self.folder / f"{self.name}.pid"

    def find(self) -> bool:
        """Whether one runs already, which an earlier run of this program has left."""
        left = int(self._state.read_text()) if self._state.exists() else 0
        ours = command_line(left).split() == " ".join(self.command).split()
        self.pid = left if ours and self.healthy() else 0
        return self.pid > 0

    def launch(self, cores: Collection[int]) -> None:
        """Start it on `cores`, and do not wait."""
        with self.log.open("ab") as log:
            process = subprocess.Popen(
                list(self.command), stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
                env=os.environ | self.environment, preexec_fn=lambda: os.sched_setaffinity(0, cores),
            )  # fmt: skip
        self.pid = process.pid
        self._state.write_text(str(self.pid))

    def wait(self) -> None:
        """Until it would take a request. Raises RuntimeError if it ends instead, or takes too long."""
        deadline = time.monotonic() + START_SECONDS
        while not self.healthy():
            if not alive(self.pid) or time.monotonic() > deadline:
                said = self.log.read_text(errors="replace")[-4000:]
                raise RuntimeError(f"{self.name} does not serve: {shlex.join(self.command)}\n{said}")
            time.sleep(0.1)

    def healthy(self) -> bool:
        """Whether it would take a request."""
        try:
            with urllib.request.urlopen(f"{self.url}/health", timeout=2) as response:
                return response.status == 200
        except OSError:
            return False

    def processes(self, named: str = "") -> list[int]:
        """The processes of it with `named` in their command line."""
        return [pid for pid in session(self.pid) if named in command_line(pid)]

    def place(self, front: Collection[int], rest: Collection[int]) -> None:
        """Move every thread: of processes that speak HTTP to the cores `front`, of all others to `rest`."""
        for pid in self.processes():
            cores = front if self.front and self.front in command_line(pid) else rest
            for thread in _threads(pid):
                try:
                    os.sched_setaffinity(thread, cores)
                except ProcessLookupError:
                    continue

    def cpu_seconds(self) -> float:
        """CPU time that its processes have used."""
        return sum(map(cpu_seconds, self.processes()))

    def stop(self) -> None:
        """End it, if it runs, and wait until nothing is left of it."""
        left = self.processes()
        if alive(self.pid):
            os.kill(self.pid, signal.SIGTERM)
        deadline = time.monotonic() + STOP_SECONDS
        while any(map(alive, left)):
            if time.monotonic() > deadline:
                for pid in filter(alive, left):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.05)
        self._state.unlink(missing_ok=True)
        self.pid, self.settled = 0, False


def dualpace(bundle: Path, model: str, port: int, folder: Path, about: Mapping[str, Any]) -> Server:
    """`dualpace serve` of a bundle."""
    command = [sys.executable, "-m", "dualpace.cli", "serve", str(bundle), "--host", "127.0.0.1", "--port", str(port)]
    return Server("dualpace", command, port, model, folder, front=FRONTEND, host=ENGINE, about=about)


def vllm(model: Path, context: int, fraction: float, port: int, folder: Path, site: Path | None) -> Server:
    """The OpenAI server of vLLM, of the folder `model`, with random weights, as it is installed in `site` or for all.

    All else is left to its defaults: CUDA graphs, compilation, chunked prefill and prefix caching are on. Asynchronous
    scheduling is asked for, so that it is refused rather than left out. FlashInfer's sampler is for top-k and top-p,
    which no request asks for, and is off, so that nothing is compiled.
    """
    arguments = {
        "--load-format": "dummy", "--dtype": "bfloat16", "--max-model-len": str(context),
        "--gpu-memory-utilization": str(fraction),
    }  # fmt: skip
    command = [
        sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(model), "--host", "127.0.0.1",
        "--port", str(port), "--async-scheduling", *(word for pair in arguments.items() for word in pair),
    ]  # fmt: skip
    environment = {
        "VLLM_USE_FLASHINFER_SAMPLER": "0", "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1",
        **({"PYTHONPATH": str(site)} if site else {}),
    }  # fmt: skip
    about = {"arguments": shlex.join(command[5:]), "version": _version(site)}
    return Server("vllm", command, port, str(model), folder, environment, about=about)


def _version(site: Path | None) -> str:
    """Of vLLM, without importing it."""
    code = "from importlib.metadata import version; print(version('vllm'))"
    environment = os.environ | ({"PYTHONPATH": str(site)} if site else {})
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def session(leader: int) -> list[int]:
    """The processes of the session that `leader` has begun, as far as they run; none if it is 0, the system's own."""
    found = []
    for entry in Path("/proc").iterdir() if leader else ():
        if entry.name.isdecimal():
            try:
                if os.getsid(int(entry.name)) == leader and alive(int(entry.name)):
                    found.append(int(entry.name))
            except ProcessLookupError:
                continue
    return found


def alive(pid: int) -> bool:
    """Whether it runs: one that has ended and was not waited for does not."""
    try:
        return pid > 0 and Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def command_line(pid: int) -> str:
    """With spaces between its words; "" if it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


def _threads(pid: int) -> list[int]:
    try:
        return [int(entry.name) for entry in Path(f"/proc/{pid}/task").iterdir()]
    except OSError:
        return []
