"""What `dualpace bench` adds to what it measures, and how much it can take, against a server that notes what it did.

    python -m benchmarks.load_generator [-o benchmarks/results/load_generator.json]

512 streams in a closed loop, each token an event of its own, from a scripted server (`tests.bench.scripted_server`)
whose clock is the client's. The client has two cores and the server the others, where there are enough. Exit code 1 if
a bar is missed: 20,000 tokens a second, its figures within 2% or 0.5 ms of the server's.
"""

import argparse
import json
import os
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.machine import SEED, save
from benchmarks.pages import RESULTS
from dualpace.bench.load import Load
from dualpace.bench.machine import machine
from dualpace.bench.offer import offer
from dualpace.bench.result import Run

STREAMS = 512
ANSWER_S = 1.5
PACES = (5_000, 10_000, 20_000, 30_000)
SECONDS = 6.0
WARM_UP_S = 1.0
TTFT_S = [0.05, 0.1, 0.075, 0.2, 0.06, 0.15, 0.09]
CLIENT_CORES = 2
BAR_TOKENS = 20_000
SHARE, WITHIN_S = 0.02, 0.5e-3
QUANTILES = {"p50": 0.5, "p99": 0.99}


@contextmanager
def scripted(cores: set[int]) -> Iterator[str]:
    """The URL of a scripted server on `cores`."""
    command = [sys.executable, "-m", "tests.bench.scripted_server"]
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        os.sched_setaffinity(0, before)
        assert process.stdout
        try:
            yield f"http://127.0.0.1:{process.stdout.readline().strip()}"
        finally:
            process.kill()


def measure(url: str, pace: int, cores: set[int]) -> dict[str, Any]:
    """One line of the table: so many tokens a second for so long."""
    interval = STREAMS / pace
    # Intervals that differ a little keep the streams from moving in step for ever.
    script = {"ttft": TTFT_S, "itl": [interval * factor for factor in (0.95, 1.0, 1.05)]}
    load = Load(
        url=url, model="scripted", workload=f"fixed:64,{round(ANSWER_S / interval)}", concurrency=STREAMS,
        duration=SECONDS, warm_up=WARM_UP_S, seed=SEED, body={"script": script}, cpus=tuple(sorted(cores)),
    )  # fmt: skip
    run = offer(load, "")
    with urllib.request.urlopen(f"{url}/log", timeout=30) as response:
        log = json.load(response)
    return {"pace": pace, "client": seen(run), "server": noted(log), "lag": run.lag.model_dump(),
            "requests": run.requests, "failed": run.requests - run.succeeded}  # fmt: skip


def seen(run: Run) -> dict[str, float]:
    """The client's figures."""
    found = {f"{name} {shown}": run.latencies[name].quantiles[shown].value for name in NAMES for shown in QUANTILES}
    return found | {"tokens_per_s": run.tokens_per_s.value}


NAMES = ("ttft", "tpot", "itl")


def noted(log: list[list[float]]) -> dict[str, float]:
    """The server's, of the same time: its first request came when the run began."""
    begin = min(stamps[0] for stamps in log)
    counted = [np.array(stamps) for stamps in log if stamps[0] >= begin + WARM_UP_S]
    writes = np.concatenate([np.array(stamps[1:]) for stamps in log]) - begin
    values = {
        "ttft": np.array([stamps[1] - stamps[0] for stamps in counted]),
        "tpot": np.array([(stamps[-1] - stamps[1]) / (len(stamps) - 2) for stamps in counted]),
        "itl": np.concatenate([np.diff(stamps[1:]) for stamps in counted]),
    }
    found = {f"{name} {shown}": float(np.quantile(values[name], p)) for name in NAMES for shown, p in QUANTILES.items()}
    inside = (writes >= WARM_UP_S) & (writes < SECONDS)
    return found | {"tokens_per_s": float(inside.sum() / (SECONDS - WARM_UP_S))}


def off(line: dict[str, Any]) -> float:
    """The greatest error of a figure, where 1 is what is allowed."""
    pairs = ((line["client"][name], truth) for name, truth in line["server"].items())
    return max(abs(figure - truth) / max(SHARE * truth, WITHIN_S) for figure, truth in pairs)


def main() -> int:
    """Measure each pace, print a table and write the result file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-o", "--output", type=Path, default=RESULTS / "load_generator.json")
    arguments = parser.parse_args()
    cores = sorted(os.sched_getaffinity(0))
    client, server = set(cores[-CLIENT_CORES:]), set(cores[:-CLIENT_CORES] or cores)
    with scripted(server) as url:
        lines = []
        for pace in PACES:
            lines.append(measure(url, pace, client))
            print(row(lines[-1]), flush=True)
    report = {"machine": machine(), "streams": STREAMS, "client_cores": len(client),
              "seed": SEED, "paces": lines}  # fmt: skip
    save(report, arguments.output)
    held = [line for line in lines if line["client"]["tokens_per_s"] > 0.95 * BAR_TOKENS and off(line) <= 1]
    return 0 if held else 1


def row(line: dict[str, Any]) -> str:
    """A line for whoever watches."""
    shown = ", ".join(
        f"{name} {1e3 * line['server'][name]:.2f} seen as {1e3 * line['client'][name]:.2f}"
        for name in line["server"]
        if name != "tokens_per_s"
    )
    return (
        f"{line['server']['tokens_per_s']:8,.0f} tokens/s seen as {line['client']['tokens_per_s']:8,.0f}; ms: {shown}; "
        f"client {line['lag']['cpu']:.0%} of a core, late p99 {1e3 * line['lag']['seeing_p99']:.2f} ms; "
        f"off by {off(line):.2f} of what is allowed"
    )


if __name__ == "__main__":
    sys.exit(main())
