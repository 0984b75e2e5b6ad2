"""What the quickstart's image takes: bytes, seconds to build and to build again, seconds until a container serves.

    python -m benchmarks.image [-o benchmarks/results/image.json]

Needs root and what the container's tests need, and starts an engine of its own. Wheels, bundle and bases are there
before the clock starts. Fails if a bar is missed: 1.1 GB, and 10 s for an edit of the HTTP side.
"""

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

from docker import DockerClient

from benchmarks.machine import host_machine, save
from tests.container.conftest import ROOT, Builder, Runner, healthy, wait_for
from tests.container.engine import engine, import_bases

RUNS = 3
IMAGE = "dualpace-appliance"
LIMITS = {"bytes": 1_100_000_000, "edit_s": 10.0}


def edits(builder: Builder, folder: Path) -> list[float]:
    """Seconds of a build after each of some edits of the HTTP side, in a copy of the package."""
    shutil.copytree(ROOT / "dualpace", folder / "dualpace", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "Dockerfile", folder)
    app = folder / "dualpace" / "appliance" / "app.py"
    times = []
    for number in range(RUNS + 1):  # at the first, Python compiles the copy to bytecode
        app.write_text(f"{app.read_text()}# {number}\n")
        times.append(builder.build(package=folder)[1])
    return times[1:]


def start(runner: Runner) -> float:
    """Seconds from `docker run` until requests are taken; the checkpoint is hashed and loaded, from page cache."""
    begin = time.monotonic()
    with runner.started() as container:
        wait_for(container, lambda: healthy(container))
        return time.monotonic() - begin


def measured(client: DockerClient, builder: Builder, folder: Path) -> dict[str, float]:
    """All figures, medians of several runs but for the first build."""
    first = builder.build()[1]
    again = [builder.build()[1] for _ in range(RUNS)]
    runner = Runner(client, IMAGE, builder.weights)
    return {
        "bytes": client.images.get(IMAGE).attrs["Size"],
        "first_s": first,
        "again_s": statistics.median(again),
        "edit_s": statistics.median(edits(builder, folder)),
        "start_s": statistics.median(start(runner) for _ in range(RUNS)),
    }


def missed(figures: Mapping[str, float]) -> list[str]:
    """The bars that `figures` miss."""
    return [f"{name} {figures[name]:g} is above {most:g}" for name, most in LIMITS.items() if figures[name] > most]


def main() -> None:
    """Measure, print, write and compare with the bars."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-o", "--output", type=Path, help="where to write the results as JSON")
    arguments = parser.parse_args()
    subprocess.run([sys.executable, ROOT / "scripts" / "quickstart_model.py"], check=True)
    with TemporaryDirectory() as name, engine(Path(name) / "engine") as own:
        folder = Path(name)
        builder = Builder(own, import_bases(own.client, folder), folder)
        subprocess.run(
            [sys.executable, "-m", "dualpace.cli", "build", builder.spec, "--no-image", "-o", builder.bundle],
            check=True,
        )
        before = host_machine("docker")
        (folder / "edited").mkdir()
        results = {"machine": before, **measured(own.client, builder, folder / "edited")}
    print(json.dumps(results, indent=1))
    if arguments.output:
        save(results, arguments.output)
    if complaints := missed(results):
        sys.exit("; ".join(complaints))


if __name__ == "__main__":
    main()
