"""DualPace beside vLLM on one GPU: the same model's shape, requests, cores and memory, quiet and among busy threads.

    python -m benchmarks.side_by_side CELL... [-o benchmarks/results/side_by_side.json] [--vllm FOLDER]
        [--built FOLDER] [--work FOLDER --keep] [--budget SECONDS]
    python -m benchmarks.side_by_side --build FOLDER

A cell is LOAD/BUSY/PLACEMENT[/REQUESTS]: 24/28/quiet/2000 is 24 requests a second beside 28 busy threads, 2,000 of
them counted; 256c is that many clients who ask again as soon as they are answered. Placements:

    shared   both servers on the busy threads' cores
    quiet    DualPace's frontend on two quiet cores, its engine with the busy threads; vLLM alone on the two quiet cores
    stopped  as quiet, and DualPace's engine process is stopped by SIGSTOP; vLLM's cannot be

In each cell one server is measured after the other, with the same arrivals and lengths; who is first alternates. Cells
are added to the result file as they end, and one that is in it is left out. vLLM stays up in between: it rests without
the GPU and, as results say, with next to no CPU. DualPace's idle engine looks at its rings from the GPU, which would
cost vLLM time and power, so it is ended before vLLM is measured. `--keep` leaves vLLM running for the next run of this
program, `--budget` begins no cell that would end too late.
"""

import argparse
import json
import math
import os
import re
import signal
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from benchmarks.gpu_engine import built
from benchmarks.machine import SEED, save
from benchmarks.model_folder import write_folder
from benchmarks.pages import RESULTS
from benchmarks.servers import Server, dualpace, vllm
from dualpace.bench.load import Interference, Load
from dualpace.bench.machine import machine
from dualpace.bench.offer import offer
from dualpace.bench.result import Run
from dualpace.launch import end_on_signals
from dualpace.lint.runner import lint_file
from dualpace.plan.manifest import read_manifest

BUNDLE, MODEL = "bundle", "model"
SPEC = Path("benchmarks/specs/llama-8b-h200.yaml")
CONTEXT = 8192
# Of the GPU's memory, for each server: both have theirs all the time.
FRACTION = 0.42
PORTS = {"dualpace": 8301, "vllm": 8302}
WORKLOAD = "chat"
# Nothing of a distribution is cut off, so that no sampler sorts.
BODY = {"temperature": 1.0, "top_p": 1.0}
REQUESTS = 1000
WARM_UP_S = 4.0
# Of a closed loop: time to be in a steady state, and the time that counts.
FILL_S, CLOSED_S = 8.0, 30.0
# What a cell takes beyond the time of its loads: the last answers, and a start of DualPace.
TAIL_S, START_S = 6.0, 20.0
SETTLE = {"rate": 24.0, "duration": 3.0}
TIMEOUT_S = 60.0
_CELL = re.compile(r"(\d+)(c?)/(\d+)/(shared|quiet|stopped)(?:/(\d+))?")


class Cores(NamedTuple):
    """Cores for what is busy, for a frontend that is left alone, and for the load generator."""

    busy: tuple[int, ...]
    quiet: tuple[int, ...]
    load: tuple[int, ...]

    @classmethod
    def of(cls, cores: Sequence[int]) -> "Cores":
        """The last two for the load, the two before them quiet; all for all where there are too few."""
        parts = (cores[:-4], cores[-4:-2], cores[-2:]) if len(cores) > 4 else (cores,) * 3
        return cls(*map(tuple, parts))


@dataclass(frozen=True)
class Cell:
    """A load, what is beside it, and where servers run."""

    rate: int | None
    clients: int | None
    busy: int
    placement: str
    requests: int = REQUESTS

    @classmethod
    def read(cls, text: str) -> "Cell":
        """Of its name. Raises ValueError."""
        match = _CELL.fullmatch(text)
        if not match:
            raise ValueError(f"{text} is no cell: write it like 24/28/quiet or 256c/0/shared")
        number, closed, busy, placement, requests = match.groups()
        rate, clients = (None, int(number)) if closed else (int(number), None)
        return cls(rate, clients, int(busy), placement, int(requests or REQUESTS))

    @property
    def name(self) -> str:
        """As it is written, without the number of requests."""
        return f"{self.rate or f'{self.clients}c'}/{self.busy}/{self.placement}"

    @property
    def servers(self) -> tuple[str, ...]:
        """Who is measured."""
        return ("dualpace",) if self.placement == "stopped" else ("dualpace", "vllm")

    @property
    def seconds(self) -> tuple[float, float]:
        """Warm-up, and the whole run. Arrivals are random: of so many requests, some more are asked for."""
        return (WARM_UP_S, WARM_UP_S + 1.05 * self.requests / self.rate) if self.rate else (FILL_S, FILL_S + CLOSED_S)

    def load(self, server: Server, cores: Cores, seed: int) -> Load:
        """What is put on `server`."""
        warm_up, duration = self.seconds
        return Load(
            url=server.url, model=server.model, workload=WORKLOAD, rate=self.rate, concurrency=self.clients,
            duration=duration, warm_up=warm_up, timeout=TIMEOUT_S, seed=seed, body=BODY, cpus=cores.load,
            max_context=CONTEXT, interference=Interference(workers=self.busy, cpus=cores.busy),
        )  # fmt: skip


class Bench:
    """Two servers, of which one is measured at a time."""

    def __init__(self, servers: Mapping[str, Server], cores: Cores) -> None:
        self._servers = servers
        self._cores = cores

    def measure(self, cell: Cell, name: str, seed: int) -> dict[str, Any]:
        """One server in a cell: a line of the result."""
        self._make_room(name)
        server, cores = self._servers[name], self._cores
        places = _places(name, cell.placement, cores)
        server.place(*places)
        others = [other for other in self._servers.values() if other is not server and other.pid]
        before = server.cpu_seconds(), sum(other.cpu_seconds() for other in others)
        with stopped(server.processes(server.host) if cell.placement == "stopped" else []):
            run = offer(cell.load(server, cores, seed), "")
        return {
            "cell": cell.name, "server": name, "seed": seed, "cores": {"front": places[0], "rest": places[1]},
            "server_cpu_s": server.cpu_seconds() - before[0],
            "other_cpu_s": sum(other.cpu_seconds() for other in others) - before[1],
            **told(run),
        }  # fmt: skip

    def _make_room(self, name: str) -> None:
        """Have the server `name` run, and DualPace only if it is the one."""
        ours, wanted = self._servers["dualpace"], self._servers[name]
        if wanted is not ours and ours.pid:
            ours.stop()
        if not wanted.pid:
            wanted.launch(self._cores.busy)
            wanted.wait()
        elif wanted.settled:
            return
        settle = {
            "url": wanted.url,
            "model": wanted.model,
            "workload": WORKLOAD,
            "body": BODY,
            "cpus": self._cores.load,
        }
        offer(Load.model_validate(settle | SETTLE), "")
        wanted.settled = True


def _places(name: str, placement: str, cores: Cores) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Cores of what speaks HTTP, and of the rest."""
    if placement == "shared":
        return cores.busy, cores.busy
    return cores.quiet, cores.busy if name == "dualpace" else cores.quiet


@contextmanager
def stopped(pids: Sequence[int]) -> Iterator[None]:
    """The processes take no part meanwhile."""
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)


def told(run: Run) -> dict[str, Any]:
    """What is kept of a run: all but its course over time."""
    kept = run.model_dump(mode="json", exclude={"load": True, "series": True, "latencies": {"__all__": {"curve"}}})
    load = run.load.model_dump(mode="json", include={"rate", "concurrency", "duration", "warm_up", "interference"})
    return {"load": load, **kept}


def pairs(cells: Sequence[Cell], done: Sequence[Mapping[str, Any]], seed: int) -> Iterator[tuple[Cell, list[str]]]:
    """Cells that are not in `done` as a whole, and who is measured first in each: the one that was last before."""
    first = "vllm"
    for cell in cells:
        have = {line["server"] for line in done if (line["cell"], line["seed"]) == (cell.name, seed)}
        if set(cell.servers) <= have:
            continue
        order = sorted(cell.servers, key=lambda name: name != first)
        yield cell, order
        first = order[-1]


def takes(cell: Cell) -> float:
    """Seconds for all servers of a cell, at most unless one of them does not keep up."""
    return START_S + len(cell.servers) * (cell.seconds[1] + TAIL_S)


def shown(line: Mapping[str, Any]) -> str:
    """A line for whoever watches."""
    found = line["latencies"]

    def ms(name: str, quantile: str) -> str:
        return f"{1e3 * found[name]['quantiles'][quantile]['value']:8.2f}" if name in found else "       -"

    energy = f"{line['energy']:.3f} J/token" if line["energy"] else ""
    return (
        f"{line['cell']:16} {line['server']:9} {line['succeeded']:5} of {line['requests']:5}  TTFT {ms('ttft', 'p50')} "
        f"{ms('ttft', 'p99')}  TPOT {ms('tpot', 'p50')} {ms('tpot', 'p99')}  ITL p99 {ms('itl', 'p99')} ms  "
        f"{line['tokens_per_s']['value']:8,.0f} tokens/s  {energy}  {'; '.join(line['warnings'])}"
    )


def build(spec: Path, folder: Path) -> None:
    """The bundle of `spec` with a share of the memory and a tokenizer, and the folder that vLLM reads."""
    plan = lint_file(spec, None).plan
    assert plan is not None, spec
    model = write_folder(plan.model, folder / MODEL)
    text = yaml.safe_load(spec.read_text())
    del text["model"]["shape"]  # the folder's config says the same
    text["model"] |= {"path": str(model.absolute()), "max_context": CONTEXT}
    if plan.target.kind != "cpu":
        text["target"]["memory_fraction"] = FRACTION
    changed = folder / spec.name
    changed.write_text(yaml.safe_dump(text))
    bundle = built(changed, folder)
    assert read_manifest(bundle).plan.model == plan.model, "the folder is of another shape"


def ours_of(folder: Path, work: Path) -> Server:
    """DualPace, of what `build` has made in `folder`; `work` is where its log goes."""
    manifest = read_manifest(folder / BUNDLE)
    about = {"version": manifest.version, "digest": manifest.digest, "spec": manifest.plan.name}
    return dualpace(folder / BUNDLE, manifest.plan.serving.model_name, PORTS["dualpace"], work, about)


def run(servers: Mapping[str, Server], cells: Sequence[Cell], seed: int, end: float, report: Path) -> None:
    """Measure what the file `report` does not have yet, and add it. No cell is begun that may not be over by `end`."""
    cores = Cores.of(sorted(os.sched_getaffinity(0)))
    found = json.loads(report.read_text()) if report.exists() else {"sittings": [], "runs": []}
    about = {name: dict(server.about) for name, server in servers.items()}
    found["sittings"].append({"machine": machine(), "cores": cores._asdict(), "servers": about})
    bench = Bench(servers, cores)
    for cell, order in pairs(cells, found["runs"], seed):
        if time.monotonic() + takes(cell) > end:
            print(f"{cell.name:16} is left for another time", flush=True)
            continue
        lines = []
        for name in order:
            lines.append(bench.measure(cell, name, seed) | {"sitting": len(found["sittings"]) - 1})
            print(shown(lines[-1]), flush=True)
        found["runs"] += lines
        save({"workload": WORKLOAD, "body": BODY, "context": CONTEXT, "memory_fraction": FRACTION, **found}, report)


def main() -> None:
    """Measure the cells, print a table and write the result file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("cells", type=Cell.read, nargs="*", metavar="CELL")
    parser.add_argument("--spec", type=Path, default=SPEC)
    parser.add_argument("--build", type=Path, metavar="FOLDER", help="build for another run of this, and end")
    parser.add_argument("--built", type=Path, metavar="FOLDER", help="what --build has made")
    parser.add_argument("--vllm", type=Path, metavar="FOLDER", help="where vLLM is installed, if not for all")
    parser.add_argument("--work", type=Path, help="where logs go, and what is known of servers that are kept")
    parser.add_argument("--keep", action="store_true", help="leave vLLM running")
    parser.add_argument("--budget", type=float, default=math.inf, metavar="SECONDS")
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("-o", "--output", type=Path, default=RESULTS / "side_by_side.json")
    arguments = parser.parse_args()
    end = time.monotonic() + arguments.budget
    if arguments.build:
        build(arguments.spec, arguments.build)
        return
    with tempfile.TemporaryDirectory() as folder:
        work = arguments.work or Path(folder)
        work.mkdir(exist_ok=True)
        if not arguments.built:
            build(arguments.spec, Path(folder))
        made = arguments.built or Path(folder)
        theirs = vllm(made / MODEL, CONTEXT, FRACTION, PORTS["vllm"], work, arguments.vllm)
        servers = {"dualpace": ours_of(made, work), "vllm": theirs}
        end_on_signals()
        for server in servers.values():
            server.find()
        try:
            run(servers, arguments.cells, arguments.seed, end, arguments.output)
        finally:
            for name, server in servers.items():
                if server.pid and not (arguments.keep and name == "vllm"):
                    server.stop()


if __name__ == "__main__":
    main()
