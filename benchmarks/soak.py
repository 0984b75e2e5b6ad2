"""DualPace under load for minutes, while clients leave, its frontend dies and its engine's process stops.

    python -m benchmarks.soak --rate R [--minutes 8] [--seed N] [--built FOLDER] [-o benchmarks/results/soak.json]

`--built` is what `benchmarks.side_by_side --build` has made. Something happens every few seconds, drawn at random: a
client leaves in the middle of its answer, the engine's process is stopped by SIGSTOP for some seconds, and now and then
the frontend is killed. A request is lost if it fails though no frontend was down while it lived, or if the engine keeps
a row or a page of it. Each run adds a part to the result file. Exit code 1 if anything is lost, or if memory or latency
is more in the last quarter of the time than before.
"""

import argparse
import csv
import http.client
import json
import os
import signal
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from benchmarks.machine import SEED, save
from benchmarks.pages import RESULTS
from benchmarks.servers import ENGINE, FRONTEND, Server
from benchmarks.side_by_side import BODY, CONTEXT, SPEC, TIMEOUT_S, WARM_UP_S, WORKLOAD, Cores, build, ours_of, stopped
from dualpace.bench.load import Load
from dualpace.bench.machine import machine
from dualpace.bench.offer import Progress, offer
from dualpace.launch import RESTART_SECONDS, end_on_signals
from dualpace.scrape import ScrapeError, scrape

# Between two things that happen, on average; how long the engine's process is stopped.
EVERY_S, STOPPED_S = 3.0, (1.0, 5.0)
# One that dies twice within `RESTART_SECONDS` is not started again at once; and its memory is watched while it lives.
KILLED_S = 4 * RESTART_SECONDS
WATCH_S = 1.0
DRAIN_S = 30.0
# Of a request that a dying frontend has: its engine's row is ended within a second.
AFTER_S = 1.0
# Growth from the first quarter to the last that is none.
MEMORY, LATENCY = 1.05, 1.10


class Down(NamedTuple):
    """When the frontend was killed, and when one took requests again, in seconds of the run."""

    begin: float
    end: float


class Trouble:
    """What happens beside the load. Times are in seconds of the run, which tells when it began."""

    def __init__(self, server: Server, seed: int, seconds: float) -> None:
        self._server = server
        self._dice = Random(f"{seed} trouble")
        self._seconds = seconds
        self._over = threading.Event()
        self._began = time.monotonic()
        self.counts = {"left": 0, "stopped": 0, "killed": 0}
        self.downs: list[Down] = []
        self.memory: list[dict[str, float]] = []
        self._threads = [threading.Thread(target=target, daemon=True) for target in (self._happen, self._watch)]

    def heard(self, progress: Progress) -> None:
        """The load says how far it is; begin with its first word."""
        if self._threads[0].ident is None:
            self._began = time.monotonic() - progress.elapsed
            for thread in self._threads:
                thread.start()

    def end(self) -> None:
        """Let what happens right now come to its end."""
        self._over.set()
        for thread in self._threads:
            if thread.ident is not None:
                thread.join()

    @property
    def now(self) -> float:
        """Seconds of the run."""
        return time.monotonic() - self._began

    def _happen(self) -> None:
        killed = self.now
        while not self._over.wait(self._dice.expovariate(1 / EVERY_S)) and self.now < self._seconds:
            if self.now > killed + KILLED_S:
                killed = self.now
                self.counts["killed"] += 1
                self._kill()
            elif self._dice.random() < 0.8:
                self.counts["left"] += 1
                self._leave()
            else:
                self.counts["stopped"] += 1
                with stopped(self._server.processes(ENGINE)):
                    self._over.wait(self._dice.uniform(*STOPPED_S))

    def _kill(self) -> None:
        begin = self.now
        for pid in self._server.processes(FRONTEND):
            os.kill(pid, signal.SIGKILL)
        while self._server.healthy():  # until the kernel has closed its sockets
            time.sleep(0.01)
        self._server.wait()
        self.downs.append(Down(begin, self.now + AFTER_S))

    def _leave(self) -> None:
        """Ask for a long answer and go after some of it."""
        prompt = [self._dice.randrange(1000, 30_000) for _ in range(self._dice.randrange(16, 512))]
        body = {"model": self._server.model, "prompt": prompt, "max_tokens": 1024, "stream": True, "ignore_eos": True}
        connection = http.client.HTTPConnection("127.0.0.1", self._server.port, timeout=TIMEOUT_S)
        try:
            connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
            connection.getresponse().read(self._dice.randrange(1, 8192))
        except (OSError, http.client.HTTPException):
            pass  # it was on the frontend that died
        finally:
            connection.close()

    def _watch(self) -> None:
        while not self._over.wait(WATCH_S):
            sizes = {"engine": _resident(self._server, ENGINE), "frontend": _resident(self._server, FRONTEND)}
            self.memory.append({"at": self.now, **sizes})


def _resident(server: Server, named: str) -> int:
    """Bytes of memory, shared pages among them, of the processes of that name."""
    total = 0
    for pid in server.processes(named):
        try:
            total += int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        except (OSError, IndexError):
            continue
    return total


def unexplained(requests: Sequence[Mapping[str, str]], downs: Sequence[Down]) -> list[str]:
    """Errors of requests that failed though no frontend was down while they lived."""
    return [
        request["error"]
        for request in requests
        if request["error"]
        and not any(
            float(request["intended_s"]) <= down.end and float(request["end_s"]) >= down.begin for down in downs
        )
    ]


def quarters(requests: Sequence[Mapping[str, str]], downs: Sequence[Down], seconds: float) -> list[dict[str, float]]:
    """Latencies of each quarter of the time, without those of requests that a frontend that was down had a part in."""

    def found(request: Mapping[str, str]) -> tuple[float, float, float]:
        intended, first, last = (float(request[f"{name}_s"]) for name in ("intended", "first", "last"))
        return intended, first - intended, (last - first) / max(int(request["tokens"]) - 1, 1)

    times = [
        found(request)
        for request in requests
        if not request["error"]
        and not any(
            float(request["intended_s"]) <= down.end and float(request["end_s"]) >= down.begin for down in downs
        )
    ]
    parts = ([time for time in times if q <= 4 * time[0] / seconds < q + 1] for q in range(4))
    return [_quarter(part) for part in parts]


def _quarter(times: Sequence[tuple[float, float, float]]) -> dict[str, float]:
    figures: dict[str, float] = {"requests": len(times)}
    for place, name in enumerate(("ttft", "tpot"), 1):
        values = [time[place] for time in times]
        figures[f"{name}_p50_s"] = statistics.median(values) if values else 0.0
        figures[f"{name}_p99_s"] = statistics.quantiles(values, n=100)[98] if len(values) > 1 else 0.0
    return figures


def grown(memory: Sequence[Mapping[str, float]], name: str) -> float:
    """How many times its size in the second quarter a process has in the last: in the first one caches fill."""
    sizes = [sample[name] for sample in memory if sample[name]]
    size = len(sizes) // 4
    return statistics.median(sizes[-size:]) / statistics.median(sizes[size : 2 * size]) if size else 1.0


def held(server: Server) -> dict[str, float]:
    """What the engine still has of requests, once none is left or some time has passed."""
    deadline = time.monotonic() + DRAIN_S
    found = {"rows": -1.0}
    while time.monotonic() < deadline and any(found.values()):
        try:
            values = scrape(server.url, "").values
        except ScrapeError:
            continue
        found = {"rows": values["dualpace_requests_running"], "waiting": values["dualpace_requests_waiting"],
                 "pages": values["dualpace_kv_pages|state=held"]}  # fmt: skip
        time.sleep(0.5)
    return found


def soak(server: Server, cores: Cores, rate: float, minutes: float, seed: int) -> dict[str, Any]:
    """One part: what happened, and what came of it."""
    seconds = 60 * minutes
    trouble = Trouble(server, seed, seconds)
    load = Load(url=server.url, model=server.model, workload=WORKLOAD, rate=rate, duration=seconds, warm_up=WARM_UP_S,
                timeout=TIMEOUT_S, seed=seed, body=BODY, cpus=cores.load, max_context=CONTEXT)  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        each = Path(folder) / "requests.csv"
        try:
            run = offer(load, "", trouble.heard, each)
        finally:
            trouble.end()
        requests = list(_rows(each))
    lost = unexplained(requests, trouble.downs)
    return {
        "rate": rate, "minutes": minutes, "seed": seed, "happened": trouble.counts, "downs": trouble.downs,
        "requests": len(requests), "failed": sum(bool(request["error"]) for request in requests), "errors": run.errors,
        "lost": lost, "held": held(server), "tokens_per_s": run.tokens_per_s.value, "energy": run.energy,
        "quarters": quarters(requests, trouble.downs, seconds),
        "memory_growth": {name: grown(trouble.memory, name) for name in ("engine", "frontend")},
        "memory": trouble.memory[:: max(len(trouble.memory) // 60, 1)],
    }  # fmt: skip


def _rows(file: Path) -> Iterator[dict[str, str]]:
    with file.open(newline="") as lines:
        yield from csv.DictReader(lines)


def faults(part: Mapping[str, Any]) -> list[str]:
    """What should not have happened."""
    found = [f"{len(part['lost'])} requests are lost: {', '.join(sorted(set(part['lost'])))}"] if part["lost"] else []
    found += [f"the engine still has {value:g} {name}" for name, value in part["held"].items() if value]
    found += [f"memory of the {name} is {growth:.2f} times what it was"
              for name, growth in part["memory_growth"].items() if growth > MEMORY]  # fmt: skip
    first, *_, last = part["quarters"]
    for figure in ("ttft_p50_s", "tpot_p50_s", "tpot_p99_s"):
        if last[figure] > LATENCY * first[figure]:
            found.append(f"{figure} is {last[figure]:.4f}, and was {first[figure]:.4f}")
    return found


def main() -> int:
    """Serve, go through one part, print what came of it and add it to the result file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rate", type=float, required=True, help="requests a second: 0.7 of what saturates")
    parser.add_argument("--minutes", type=float, default=8.0)
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--spec", type=Path, default=SPEC)
    parser.add_argument("--built", type=Path, metavar="FOLDER", help="what benchmarks.side_by_side --build has made")
    parser.add_argument("-o", "--output", type=Path, default=RESULTS / "soak.json")
    arguments = parser.parse_args()
    cores = Cores.of(sorted(os.sched_getaffinity(0)))
    end_on_signals()
    with tempfile.TemporaryDirectory() as folder:
        if not arguments.built:
            build(arguments.spec, Path(folder))
        server = ours_of(arguments.built or Path(folder), Path(folder))
        try:
            server.launch(cores.busy)
            server.wait()
            part = soak(server, cores, arguments.rate, arguments.minutes, arguments.seed)
        finally:
            server.stop()
    found = json.loads(arguments.output.read_text()) if arguments.output.exists() else {"parts": []}
    found["parts"].append({"machine": machine(), "server": server.about, **part})
    save(found, arguments.output)
    print(json.dumps({name: value for name, value in part.items() if name != "memory"}, indent=1))
    for fault in faults(part):
        print(f"FAULT: {fault}")
    return 1 if faults(part) else 0


if __name__ == "__main__":
    sys.exit(main())
