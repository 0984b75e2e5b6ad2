"""Measures a deployment's attention on the GPU of this machine: its kernels, run by a process of the serving side."""

import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

from dualpace.build.compile import compile_libraries
from dualpace.build.errors import BuildError
from dualpace.build.headers import find_headers
from dualpace.build.progress import Progress
from dualpace.build.store import Store
from dualpace.build.units import attention_kernels
from dualpace.plan import flashinfer
from dualpace.plan.calibration import Calibration
from dualpace.plan.plan import Plan
from dualpace.render.sources import render

CALIBRATE = "dualpace.engine.calibrate"
NEEDS = ("torch", "numpy", "cuda")


def calibrate(plan: Plan, store: Store, progress: Progress) -> Calibration:
    """What attention's kernels cost in layers like those of `plan`. Raises BuildError."""
    if plan.target.kind != "cuda":
        raise BuildError("only a GPU has attention routes to choose from: name one in target.gpu", "target")
    missing = [name for name in NEEDS if find_spec(name) is None]
    if missing:
        raise BuildError(f"measuring needs {', '.join(missing)}: run `pip install 'dualpace[serve,cuda]'`")
    plan = _with_every_route(plan, progress)
    sources = render(plan)
    library = attention_kernels(plan, sources)
    cubin = compile_libraries([library], sources, store, progress)[library.output]
    progress.step("measure attention")
    with tempfile.NamedTemporaryFile("w", suffix=".json", encoding="utf-8") as file:
        file.write(plan.model_dump_json())
        file.flush()
        return Calibration.model_validate_json(_measured(Path(file.name), cubin))


def _with_every_route(plan: Plan, progress: Progress) -> Plan:
    """`plan` with FlashInfer's kernel where that covers the model and its headers are here."""
    kernel = flashinfer.kernel(plan.model)
    if kernel != "none":
        try:
            find_headers("flashinfer")
        except BuildError as error:
            progress.note(f"the flashinfer route is not measured: {error}")
            kernel = "none"
    return plan.model_copy(update={"attention": plan.attention.model_copy(update={"flashinfer": kernel})})


def _measured(plan: Path, cubin: Path) -> str:
    command = [sys.executable, "-m", CALIBRATE, str(plan), str(cubin)]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace")
    if done.returncode:
        *before, last = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
        raise BuildError(f"attention could not be measured: {last}", output="\n".join(before))
    return done.stdout
