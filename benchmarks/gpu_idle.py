"""What a GPU draws while its engine has nothing to do.

    python -m benchmarks.gpu_idle [--spec benchmarks/specs/llama-8b-h200.yaml] [-o benchmarks/results/gpu_idle.json]

States: no process on the GPU; an engine whose device looks at the rings without a pause; one that backs off, as built;
a parked one, with its memory taken and nothing launched: the host drives it and is stopped. The first is taken twice.
"""

import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import patch

from benchmarks.cpu_free import stopped
from benchmarks.gpu_engine import Engine, built, command_line, write
from dualpace.build import bundle as bundles
from dualpace.build.store import Store
from dualpace.cli.inputs import store_folder
from dualpace.plan.manifest import read_manifest
from dualpace.plan.plan import Plan
from dualpace.render.sources import render
from tests.gpu.conftest import Silent

SETTLE_SECONDS = 3.0
SECONDS = 4.0
_QUERY = "power.draw.instant,clocks.sm,clocks.mem"
_PAUSE = "constexpr unsigned kNapNs = 16'000;"


def sample() -> dict[str, float]:
    """Watts and clocks in MHz: medians of what the driver says for some seconds, after it has settled."""
    time.sleep(SETTLE_SECONDS)
    command = ["nvidia-smi", f"--query-gpu={_QUERY}", "--format=csv,noheader,nounits", "-lms", "100"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        time.sleep(SECONDS)
        process.terminate()
        assert process.stdout
        # The last line may be cut off.
        lines = process.stdout.read().splitlines()[:-1]
    watts, sm, memory = zip(*(map(float, line.split(",")) for line in lines), strict=True)
    return {"watts": statistics.median(watts), "sm_mhz": statistics.median(sm), "memory_mhz": statistics.median(memory)}


def without_pause(plan: Plan, folder: Path) -> Path:
    """The bundle of `plan`, but that it looks at the rings all the time."""

    def restless(plan: Plan) -> Mapping[str, str]:
        sources = render(plan)
        text = sources["cuda/scheduler.cu"]
        assert _PAUSE in text
        return sources | {"cuda/scheduler.cu": text.replace(_PAUSE, "constexpr unsigned kNapNs = 0;")}

    with patch.object(bundles, "render", restless):
        bundles.build(plan, folder / "restless", Store(store_folder(None)), Silent())
    return folder / "restless"


@contextmanager
def serving(bundle: Path, folder: Path, parked: bool) -> Iterator[None]:
    """An engine that is ready, with its ring claimed."""
    engine = Engine(bundle, folder, *(("--drive", "host") if parked else ()))
    try:
        with stopped(engine.process.pid) if parked else nullcontext():
            yield
    finally:
        engine.close()


def main() -> None:
    """Take every state, print a table and write the result file."""
    arguments = command_line(__doc__.splitlines()[0], "gpu_idle.json").parse_args()
    states: dict[str, Any] = {"none": sample()}
    with tempfile.TemporaryDirectory(dir="/dev/shm") as shared:
        folder = Path(shared)
        bundle = arguments.bundle or built(arguments.spec, folder)
        manifest = read_manifest(bundle)
        kinds = {"polling": without_pause(manifest.plan, folder), "backed off": bundle, "parked": bundle}
        for state, of_state in kinds.items():
            with serving(of_state, folder, state == "parked"):
                states[state] = sample()
    states["none, after"] = sample()
    for state, figures in states.items():
        print(f"{state:12} " + "  ".join(f"{name} {value:7.1f}" for name, value in figures.items()), flush=True)
    write(arguments, manifest.digest, {"states": states})


if __name__ == "__main__":
    main()
