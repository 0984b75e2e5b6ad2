"""What a GPU draws while its engine has nothing to do, and how soon the next request has its token.

    python -m benchmarks.gpu_idle [--spec benchmarks/specs/llama-8b-h200.yaml] [-o benchmarks/results/gpu_idle.json]

States: no process on the GPU; an engine whose device looks at the rings without a pause; one that backs off, as built;
one that has parked. The first is taken twice. A token is the first of a prompt of 64, of several one after the other.
"""

import statistics
import subprocess
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from unittest.mock import patch

from benchmarks.gpu_engine import Engine, bundle_of, command_line, write
from dualpace.build import bundle as bundles
from dualpace.build.store import Store
from dualpace.cli.inputs import store_folder
from dualpace.engine.ring import SamplingParams
from dualpace.plan.manifest import read_manifest
from dualpace.plan.plan import Plan
from dualpace.render.sources import render
from tests.gpu.conftest import Silent

SETTLE_SECONDS = 3.0
SECONDS = 4.0
PARK_SECONDS = 0.25
REQUESTS = 9
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


def parking(plan: Plan, folder: Path) -> Path:
    """The bundle of `plan`, but that it parks."""
    schedule = plan.schedule.model_copy(update={"park_after": PARK_SECONDS})
    bundles.build(plan.model_copy(update={"schedule": schedule}), folder / "parking", store(), Silent())
    return folder / "parking"


def without_pause(plan: Plan, folder: Path) -> Path:
    """The bundle of `plan`, but that it looks at the rings all the time."""

    def restless(plan: Plan) -> Mapping[str, str]:
        sources = render(plan)
        text = sources["cuda/scheduler.cu"]
        assert _PAUSE in text
        return sources | {"cuda/scheduler.cu": text.replace(_PAUSE, "constexpr unsigned kNapNs = 0;")}

    with patch.object(bundles, "render", restless):
        bundles.build(plan, folder / "restless", store(), Silent())
    return folder / "restless"


def store() -> Store:
    """Where compiled kernels are kept."""
    return Store(store_folder(None))


def of_engine(bundle: Path, folder: Path) -> dict[str, float]:
    """What the GPU draws beside an engine of `bundle` that is idle, and the median TTFT of requests that come then."""
    engine = Engine(bundle, folder)
    try:
        found = sample()
        ttfts = []
        for _ in range(REQUESTS):
            time.sleep(2 * PARK_SECONDS)
            events = engine.run([list(range(64))], SamplingParams(max_tokens=1, temperature=0.0))
            ttfts.append(events[0][0][0])
    finally:
        engine.close()
    return found | {"ttft_ms": 1e3 * statistics.median(ttfts)}


def main() -> None:
    """Take every state, print a table and write the result file."""
    arguments = command_line(__doc__.splitlines()[0], "gpu_idle.json").parse_args()
    states: dict[str, Any] = {"none": sample()}
    with tempfile.TemporaryDirectory(dir="/dev/shm") as shared:
        folder = Path(shared)
        bundle = bundle_of(arguments, folder)
        manifest = read_manifest(bundle)
        plan = manifest.plan
        kinds = {"polling": without_pause(plan, folder), "backed off": bundle, "parked": parking(plan, folder)}
        for state, of_state in kinds.items():
            states[state] = of_engine(of_state, folder)
    states["none, after"] = sample()
    for state, figures in states.items():
        print(f"{state:12} " + "  ".join(f"{name} {value:7.1f}" for name, value in figures.items()), flush=True)
    write(arguments, manifest.digest, {"states": states})


if __name__ == "__main__":
    main()
