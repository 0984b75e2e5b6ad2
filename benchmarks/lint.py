"""How long a lint takes: one spec as a whole process, and a thousand in one.

    python -m benchmarks.lint [-o benchmarks/results/lint.json]

Both must hold on an idle machine: the least of some runs of a process below 0.25 s, a thousand specs below 5 s. The
specs are the shipped ones and the rules' examples, bad ones included, from page cache.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from itertools import cycle, islice
from pathlib import Path

from benchmarks.machine import host_machine, save

ROOT = Path(__file__).parents[1]
RUNS = 20
SPECS = 1000
ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
LIMITS = {"process_s": 0.25, "thousand_s": 5.0}


def process_times(spec: Path) -> list[float]:
    """Seconds of `dualpace lint SPEC`, from start to exit, with Python's bytecode cached."""
    command = [sys.executable, "-m", "dualpace.cli", "lint", spec]
    times = []
    for _ in range(RUNS + 1):
        start = time.perf_counter()
        subprocess.run(command, cwd=ROOT, env=ENVIRONMENT, check=True, capture_output=True)
        times.append(time.perf_counter() - start)
    return times[1:]


def thousand_time() -> float:
    """Seconds of one `dualpace lint FOLDER` over a thousand specs."""
    sources = [*sorted((ROOT / "specs").glob("*.yaml")), *sorted((ROOT / "dualpace/lint/examples").glob("*/*.yaml"))]
    with tempfile.TemporaryDirectory() as name:
        for number, source in enumerate(islice(cycle(sources), SPECS)):
            (Path(name) / f"{number:04}.yaml").write_bytes(source.read_bytes())
        command = [sys.executable, "-m", "dualpace.cli", "lint", name, "--format", "json"]
        start = time.perf_counter()
        done = subprocess.run(command, cwd=ROOT, env=ENVIRONMENT, capture_output=True, check=False)
        seconds = time.perf_counter() - start
    assert done.returncode == 1
    assert json.loads(done.stdout)["diagnostics"]
    return seconds


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-o", "--output", type=Path, help="where to write the results as JSON")
    arguments = parser.parse_args()
    before = host_machine()
    times = process_times(ROOT / "specs" / "llama-3.1-8b-h200.yaml")
    results = {
        "machine": before,
        "process_s": min(times),
        "process_median_s": statistics.median(times),
        "thousand_s": thousand_time(),
    }
    print(json.dumps(results, indent=1))
    if arguments.output:
        save(results, arguments.output)
    missed = [name for name, limit in LIMITS.items() if results[name] > limit]
    sys.exit(f"too slow: {', '.join(missed)}" if missed else 0)


if __name__ == "__main__":
    main()
