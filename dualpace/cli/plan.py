"""`plan`: what a spec resolves to."""

from __future__ import annotations

from typing import Annotated

import typer

from dualpace.cli.inputs import Format, SpecPath, load_plan
from dualpace.cli.terminal import write


def plan(
    spec: SpecPath,
    format_: Annotated[Format, typer.Option("--format", help="How the plan is written.")] = Format.TEXT,
) -> None:
    """Show what a spec resolves to: sizes, pages, step programs, memory, the roofline floor."""
    from dualpace.plan.report import json_report, text_report

    report = json_report if format_ is Format.JSON else text_report
    write(report(load_plan(spec)))
