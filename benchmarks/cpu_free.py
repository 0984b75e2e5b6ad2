"""How little the host takes part: the GPU engine under load while its process is stopped, and while its cores are busy.

    python -m benchmarks.cpu_free [--spec benchmarks/specs/llama-8b-h200.yaml] [-o benchmarks/results/cpu_free.json]

A closed loop keeps `ROWS` requests of random prompts in the engine, so that rows are admitted all the time; this
process, the frontend's part, stamps each token as it arrives. Phases: quiet; the engine's process stopped by SIGSTOP;
as many busy threads as `BUSY`, which copy memory and compute, on the engine's cores, with this process on two others.
"""

import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.gpu_engine import Engine, bundle_of, command_line, cpu_seconds, write
from benchmarks.machine import SEED
from dualpace.engine.ring import SamplingParams
from dualpace.plan.manifest import read_manifest
from dualpace.plan.structs import Finish

ROWS = 32
PHASE_SECONDS = 10.0
BUSY = 28
_BUSY_CODE = """
import time
data = bytearray(32 << 20)
end = time.monotonic() + {seconds}
while time.monotonic() < end:
    bytes(data)
    sum(i * i for i in range(200_000))
"""


def load(engine: Engine, seconds: float, dice: random.Random) -> dict[str, Any]:
    """Keep the engine busy for that long; what the tokens of requests that ended meanwhile say."""
    vocabulary = engine.plan.model.vocab
    ring = engine.ring
    first: dict[int, float] = {}
    tpots, gaps = [], []
    last: dict[int, float] = {}
    count: dict[int, int] = {}
    tokens = 0
    began = time.monotonic()
    cpu = cpu_seconds(engine.process.pid)

    def submit() -> None:
        tag = engine.next_tag()
        prompt = [dice.randrange(vocabulary) for _ in range(dice.randrange(32, 512))]
        assert ring.submit(tag, prompt, SamplingParams(max_tokens=dice.randrange(64, 256), temperature=1.0, seed=tag))
        count[tag] = 0

    for _ in range(ROWS):
        submit()
    while count:
        events = ring.wait(0.05)
        now = time.monotonic()
        for event in events:
            tokens += now < began + seconds
            count[event.tag] += 1
            if event.tag in last:
                gaps.append(now - last[event.tag])
            first.setdefault(event.tag, now)
            last[event.tag] = now
            if event.finish is not Finish.NONE:
                assert event.finish is Finish.LENGTH, event
                of_request = count.pop(event.tag)
                tpots.append((now - first[event.tag]) / (of_request - 1))
                if now < began + seconds:
                    submit()
        assert now < began + 4 * seconds, f"{len(count)} requests do not end"
    return {
        "seconds": seconds,
        "requests": len(tpots),
        "tokens": tokens,
        "tpot_p50_s": statistics.median(tpots),
        "tpot_p99_s": statistics.quantiles(tpots, n=100)[98],
        "itl_p99_s": statistics.quantiles(gaps, n=100)[98],
        "itl_max_s": max(gaps),
        "engine_cpu_s": cpu_seconds(engine.process.pid) - cpu,
    }


@contextmanager
def stopped(pid: int) -> Iterator[None]:
    """The process takes no part meanwhile."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


@contextmanager
def busy(cores: set[int], threads: int, seconds: float) -> Iterator[None]:
    """So many processes of one thread at work on `cores`, for `seconds` at most."""
    command = [sys.executable, "-c", _BUSY_CODE.format(seconds=seconds)]
    workers = [subprocess.Popen(command, preexec_fn=lambda: os.sched_setaffinity(0, cores)) for _ in range(threads)]
    try:
        yield
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()


def line(name: str, phase: dict[str, Any]) -> str:
    """A line of the table."""
    figures = {key: 1e3 * phase[f"{key}_s"] for key in ("tpot_p50", "tpot_p99", "itl_p99", "itl_max")}
    return (
        f"{name:9} {phase['tokens']:7} tokens in {phase['seconds']:.0f} s, {phase['requests']:5} requests; TPOT p50 "
        f"{figures['tpot_p50']:.3f} p99 {figures['tpot_p99']:.3f} ms, ITL p99 {figures['itl_p99']:.2f} max "
        f"{figures['itl_max']:.1f} ms; engine CPU {phase['engine_cpu_s']:.3f} s"
    )


def main() -> None:
    """Serve, go through the phases, print a table and write the result file."""
    arguments = command_line(__doc__.splitlines()[0], "cpu_free.json").parse_args()
    cores = sorted(os.sched_getaffinity(0))
    theirs, ours = set(cores[:-2]), set(cores[-2:])
    dice = random.Random(SEED)
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        bundle = bundle_of(arguments, Path(folder))
        digest = read_manifest(bundle).digest
        os.sched_setaffinity(0, theirs)
        engine = Engine(bundle, Path(folder))
        os.sched_setaffinity(0, ours)
        phases = {}
        try:
            load(engine, 2.0, dice)
            phases["quiet"] = load(engine, PHASE_SECONDS, dice)
            with stopped(engine.process.pid):
                phases["stopped"] = load(engine, PHASE_SECONDS, dice)
            with busy(theirs, BUSY, 4 * PHASE_SECONDS):
                time.sleep(1.0)
                phases["busy"] = load(engine, PHASE_SECONDS, dice)
            for name, phase in phases.items():
                print(line(name, phase), flush=True)
        finally:
            engine.close()
    figures = {
        "rows": ROWS,
        "busy_threads": BUSY,
        "engine_cores": len(theirs),
        "token_slots": engine.plan.rings.token_slots,
        "phases": phases,
    }
    write(arguments, digest, figures)


if __name__ == "__main__":
    main()
