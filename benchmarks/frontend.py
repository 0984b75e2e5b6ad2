"""What the frontend adds: latency of streamed tokens, requests a second, time to first token, CPU time at rest.

    python -m benchmarks.frontend [-o benchmarks/results/frontend.json] [--built FOLDER]
    python -m benchmarks.frontend --build FOLDER

An engine without a model (`benchmarks.replay`) plays tokens at a set pace through the real rings, and a client in C++
reads them; both note when on one clock, so what lies between is the frontend's and the kernel's. Each frontend has a
core and a port of its own, and engine and client have a core each, where there are enough. Exit code 1 if a bar is
missed. `--build` compiles what is needed for a machine that has no compiler and no model.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.gpu_engine import built
from benchmarks.machine import host_machine, save
from benchmarks.pages import RESULTS, ROOT
from benchmarks.replay import ARRIVAL, LIBRARY, MOMENT, TEXT, TOKEN, compiled
from dualpace.model.tokenizer import Tokenizer
from dualpace.plan.manifest import read_manifest

HERE = Path(__file__).parent
SENT, SEEN, ENDED = 0, 1, 2
START_SECONDS = 60.0
# Left out of the figures: connections, caches and rows fill up.
WARM_UP_SECONDS = 1.0
PROMPT = "Tell me about foxes."
SHORT_TOKENS = 4
PROMPT_TOKENS = 1000
CLIENT = "load_client"
SERVER = (sys.executable, "-m", "dualpace.appliance.server")
FRONTENDS = (1, 2, 4, 8)
ROWS = 1024


@dataclass(frozen=True)
class Load:
    """What is asked of `frontends`: requests with these fields over so many connections for so long.

    `rate` in requests a second; 0: each connection asks again as soon as it is answered.
    """

    step_ms: float
    connections: int
    fields: dict[str, Any]
    rate: float = 0
    seconds: float = 6
    frontends: int = 1


@dataclass
class Seen:
    """What engine and client noted, and the CPU seconds of each frontend meanwhile."""

    engine: NDArray[Any]
    client: NDArray[Any]
    cpu: list[float]
    seconds: float
    sent: int
    text: NDArray[Any]  # bytes of text up to the end of each token of the script, which repeats

    begin: int = field(init=False)
    end: int = field(init=False)

    def __post_init__(self) -> None:
        """Take the time in which the load was at its height."""
        first = int(self.client["ns"].min())
        self.begin = first + int(WARM_UP_SECONDS * 1e9)
        self.end = first + int(self.seconds * 1e9)

    def token_latencies(self) -> NDArray[Any]:
        """Seconds from each token's publication to the client's sight of its last byte."""
        published = self.engine[self.engine["what"] == TOKEN]
        published = published[(published["ns"] >= self.begin) & (published["ns"] < self.end)]
        seen = self.client[self.client["what"] == SEEN]
        # In order of request, and within one of text: the first event that has a token's last byte is where it came.
        place = seen["seed"].astype(np.uint64) << np.uint64(32) | seen["count"]
        order = np.argsort(place, kind="stable")
        count = published["count"].astype(np.int64)
        tokens = len(self.text)
        size = (count // tokens) * self.text[-1] + np.where(count % tokens, self.text[count % tokens - 1], 0)
        wanted = published["seed"].astype(np.uint64) << np.uint64(32) | size.astype(np.uint64)
        came = seen[order][np.searchsorted(place[order], wanted)]
        # The client waits for the end of every request, so none is missing.
        assert (came["seed"] == published["seed"]).all(), "tokens did not come"
        return (came["ns"] - published["ns"]) / 1e9

    def added_ttft(self) -> NDArray[Any]:
        """Seconds of each request from when it was due to its first text, less what the engine took of them."""

        def by_seed(moments: NDArray[Any], what: int) -> dict[int, int]:
            found = moments[moments["what"] == what]
            seeds, firsts = np.unique(found["seed"], return_index=True)
            return dict(zip(seeds.tolist(), found["ns"][firsts].tolist(), strict=True))

        sent, seen = by_seed(self.client, SENT), by_seed(self.client, SEEN)
        came, said = by_seed(self.engine, ARRIVAL), by_seed(self.engine, TOKEN)
        # An engine that is held up reads of a request only after its place in the ring has gone to the next.
        took = [
            seen[seed] - sent[seed] - (said[seed] - came[seed])
            for seed in seen.keys() & came.keys()
            if self.begin <= sent[seed] < self.end
        ]
        return np.array(took) / 1e9

    @property
    def span(self) -> float:
        """Seconds that count."""
        return (self.end - self.begin) / 1e9

    def answered(self) -> int:
        """Requests that ended in time."""
        ends = self.client[self.client["what"] == ENDED]["ns"]
        return int(((ends >= self.begin) & (ends < self.end)).sum())


def build(folder: Path) -> None:
    """Bundle, replay engine and client."""
    subprocess.run([sys.executable, ROOT / "scripts/quickstart_model.py"], check=True)
    bundle = built(HERE / "specs/frontend.yaml", folder)
    shutil.copyfile(compiled(bundle), folder / LIBRARY)
    source = HERE / f"{CLIENT}.cpp"
    subprocess.run(["g++", "-O2", "-std=c++20", "-static", source, "-o", folder / CLIENT], check=True)


class Bench:
    """What `build` made in `built`, and where each process runs; `folder` is for what they leave each other."""

    def __init__(self, built: Path, folder: Path, server: Sequence[str] = SERVER) -> None:
        """`server` is how a frontend is started, before its arguments."""
        self.bundle = built / "bundle"
        self._server = server
        self.folder = folder
        self._built = built
        self.tokenizer = Tokenizer(self.bundle)
        self.script = self.tokenizer.encode(TEXT, add_special=False)
        self.text = np.cumsum([len(self.tokenizer.token_bytes(token)) for token in self.script])
        self.cores = sorted(os.sched_getaffinity(0))

    def pinned(self, core: int) -> Any:
        """Keeps a process that is about to start on a core, counted from the last one; what is too many shares."""
        cores = {self.cores[-1 - core % len(self.cores)]}
        return lambda: os.sched_setaffinity(0, cores)

    @contextmanager
    def engine(self, step_ms: float, log: Path) -> Iterator[Path]:
        """The replay engine; yields its ring file."""
        rings = self.folder / "rings"
        command = [sys.executable, "-m", "benchmarks.replay", self.bundle, "--rings", rings, "--log", log]
        command += ["--step-ms", str(step_ms), "--library", self._built / LIBRARY]
        with subprocess.Popen(command, preexec_fn=self.pinned(len(self.cores) - 1)) as process:
            try:
                _wait_for(process, rings.exists)
                yield rings
            finally:
                process.terminate()

    @contextmanager
    def frontends(self, count: int, rings: Path) -> Iterator[list[tuple[int, int]]]:
        """So many frontends; yields the id of each one's process and its port."""
        with ExitStack() as stack:
            started = [stack.enter_context(self._frontend(number, rings)) for number in range(count)]
            for process, port, log in started:
                _wait_for(process, partial(_is_written, port), log)
            yield [(process.pid, int(port.read_text())) for process, port, _ in started]

    @contextmanager
    def _frontend(self, number: int, rings: Path) -> Iterator[tuple[subprocess.Popen[bytes], Path, Path]]:
        """One that may not listen yet; yields its process, and the files of its port and of what it says."""
        port, log = self.folder / f"port{number}", self.folder / f"log{number}"
        port.unlink(missing_ok=True)
        command = [*self._server, self.bundle, "--rings", rings]
        command += ["--ring", str(number), "--host", "127.0.0.1", "--port", "0", "--port-file", port]
        with (
            log.open("wb") as lines,
            subprocess.Popen(command, stderr=lines, preexec_fn=self.pinned(number)) as process,
        ):
            try:
                yield process, port, log
            finally:
                process.terminate()

    def run(self, load: Load) -> Seen:
        """What is seen under a load."""
        engine_log, client_log, request = (self.folder / name for name in ("engine", "client", "request"))
        fields = {"model": read_manifest(self.bundle).plan.serving.model_name, "ignore_eos": True} | load.fields
        request.write_text(json.dumps(fields | {"seed": "SEED"}).replace('"SEED"', "SEED"))
        with ExitStack() as stack:
            rings = stack.enter_context(self.engine(load.step_ms, engine_log))
            frontends = stack.enter_context(self.frontends(load.frontends, rings))
            command = [self._built / CLIENT, "127.0.0.1", ",".join(str(port) for _, port in frontends), request]
            command += [str(value) for value in (load.connections, load.rate, load.seconds)]
            before = [cpu_seconds(pid) for pid, _ in frontends]
            # Where there are two cores it shares the engine's, not the frontend's.
            pin = self.pinned(max(1, len(self.cores) - 2))
            done = subprocess.run([*command, client_log], check=True, preexec_fn=pin, stdout=subprocess.PIPE)
            cpu = [cpu_seconds(pid) - b for (pid, _), b in zip(frontends, before, strict=True)]
            told = json.loads(done.stdout)
            assert not told["refused"], told
        seen = (np.fromfile(log, dtype=MOMENT) for log in (engine_log, client_log))
        return Seen(*seen, cpu=cpu, seconds=load.seconds, sent=told["sent"], text=self.text)

    def at_rest(self, seconds: float) -> float:
        """Share of a core that an idle frontend takes."""
        with self.engine(25, self.folder / "engine") as rings, self.frontends(1, rings) as [(pid, _)]:
            time.sleep(2)
            before = cpu_seconds(pid)
            time.sleep(seconds)
            return (cpu_seconds(pid) - before) / seconds


def _is_written(port: Path) -> bool:
    return port.exists() and port.read_text().endswith("\n")


def _wait_for(process: subprocess.Popen[bytes], there: Callable[[], bool], log: Path | None = None) -> None:
    """Wait until it is `there`; `log` is what the process writes."""
    deadline = time.monotonic() + START_SECONDS
    while not there():
        told = log.read_text() if log else ""
        assert process.poll() is None, f"{process.args} ended with {process.returncode}\n{told}"
        assert time.monotonic() < deadline, f"{process.args} does not get ready\n{told}"
        time.sleep(0.02)


def cpu_seconds(pid: int) -> float:
    """CPU time of a process's living threads."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9


def percentiles(seconds: NDArray[Any]) -> dict[str, float]:
    """Milliseconds."""
    return {
        name: round(float(np.percentile(seconds, q)) * 1e3, 3)
        for name, q in (("p50_ms", 50), ("p99_ms", 99), ("max_ms", 100))
    }


def streams(bench: Bench, frontends: int) -> dict[str, Any]:
    """Streams that never end, each connection's next when its last has: 10,240 tokens a second and frontend."""
    each = min(256, ROWS // frontends)
    step_ms = each / 10.24
    fields = {"prompt": PROMPT, "max_tokens": 256, "stream": True}
    seen = bench.run(Load(step_ms, each * frontends, fields, frontends=frontends))
    latencies = seen.token_latencies()
    return {
        "frontends": frontends,
        "streams": each * frontends,
        "step_ms": step_ms,
        "tokens_per_s": round(len(latencies) / seen.span),
        "cpu_us_per_token": round(sum(seen.cpu) / int((seen.engine["what"] == TOKEN).sum()) * 1e6, 2),
        **percentiles(latencies),
    }


def short_requests(bench: Bench, frontends: int) -> dict[str, Any]:
    """Requests for a few tokens, unstreamed, one after the other on each connection."""
    fields = {"prompt": PROMPT, "max_tokens": SHORT_TOKENS}
    seen = bench.run(Load(1.0, 64 * frontends, fields, seconds=5, frontends=frontends))
    return {
        "frontends": frontends,
        "connections": 64 * frontends,
        "requests_per_s": round(seen.answered() / seen.span),
        "cpu_us_per_request": round(sum(seen.cpu) / seen.sent * 1e6, 1),
    }


def first_tokens(bench: Bench) -> dict[str, Any]:
    """Requests with a long prompt at a moderate rate."""
    prompt = bench.tokenizer.decode((bench.script * PROMPT_TOKENS)[:PROMPT_TOKENS])
    tokens = len(bench.tokenizer.encode(prompt))
    assert tokens >= 0.9 * PROMPT_TOKENS
    seen = bench.run(Load(5.0, 32, {"prompt": prompt, "max_tokens": 2, "stream": True}, rate=50))
    return {
        "prompt_tokens": tokens,
        "requests_per_s": 50,
        "cpu_us_per_request": round(sum(seen.cpu) / seen.sent * 1e6, 1),
        **percentiles(seen.added_ttft()),
    }


MEASURES = {"streams": streams, "short requests": short_requests}


def measure(bench: Bench, frontends: Sequence[int]) -> dict[str, Any]:
    """All figures, printed as they come."""
    figures: dict[str, Any] = {"rest": {"core": round(bench.at_rest(5), 4)}}
    print("rest", figures["rest"], flush=True)
    figures["first token"] = first_tokens(bench)
    print("first token", figures["first token"], flush=True)
    for name, of in MEASURES.items():
        figures[name] = []
        for count in frontends:
            figures[name].append(of(bench, count))
            print(name, figures[name][-1], flush=True)
    return figures


def bars(figures: dict[str, Any]) -> dict[str, bool]:
    """Those of one frontend on one core."""
    stream, short = figures["streams"][0], figures["short requests"][0]
    return {
        "10,000 streamed tokens a second": stream["tokens_per_s"] >= 10_000,
        "p99 of their latency under 5 ms": stream["p99_ms"] < 5,
        "1,500 short requests a second": short["requests_per_s"] >= 1_500,
        "p99 of 3 ms added to TTFT": figures["first token"]["p99_ms"] <= 3,
        "under 1% of a core at rest": figures["rest"]["core"] < 0.01,
    }


def main() -> int:
    """Measure, print, write the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-o", type=Path, default=RESULTS / "frontend.json", metavar="FILE")
    parser.add_argument("--build", type=Path, metavar="FOLDER", help="compile into this folder, and no more")
    parser.add_argument("--built", type=Path, metavar="FOLDER", help="what --build made there")
    parser.add_argument("--frontends", type=int, nargs="+", default=FRONTENDS, metavar="N", help="how many at a time")
    given = parser.parse_args()
    if given.build:
        given.build.mkdir(parents=True, exist_ok=True)
        build(given.build)
        return 0
    machine = host_machine("fastapi", "pydantic", "tokenizers", "uvicorn")
    with tempfile.TemporaryDirectory(dir="/dev/shm") as name:
        if not given.built:
            build(Path(name))
        figures = measure(Bench(given.built or Path(name), Path(name)), given.frontends)
    met = bars(figures)
    save({"machine": machine, **figures, "bars": met}, given.o)
    print(", ".join(f"{name}: {'met' if met else 'missed'}" for name, met in met.items()))
    return 0 if all(met.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
