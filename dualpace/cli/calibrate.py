"""`calibrate`: what attention costs on the GPU of this machine, for `target.calibration`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from dualpace.cli.build import fail_build
from dualpace.cli.inputs import SpecPath, StorePath, load_plan, store_folder
from dualpace.cli.terminal import show


def calibrate(
    spec: SpecPath,
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", metavar="FILE", help="The calibration.", show_default="<gpu>.calibration.json"),
    ] = None,
    store: StorePath = None,
) -> None:
    """Measure attention on this machine's GPU, so that the plan and the device know which route is the fastest."""
    from dualpace.build.calibrate import calibrate as measure
    from dualpace.build.errors import BuildError
    from dualpace.build.progress import report_to
    from dualpace.build.store import Store

    plan = load_plan(spec)
    output = output or Path(f"{plan.target.name}.calibration.json")
    try:
        with report_to(sys.stderr) as progress:
            found = measure(plan, Store(store_folder(store)), progress)
    except BuildError as error:
        fail_build(spec, error)
    output.write_text(found.model_dump_json(indent=1) + "\n", encoding="utf-8")
    show(f"{output} is written: name it in target.calibration of {spec}\n", sys.stderr)
