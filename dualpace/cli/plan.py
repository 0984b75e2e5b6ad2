"""`plan`: what a spec resolves to."""

from __future__ import annotations

import shutil
import sys
from typing import Annotated

import typer

from dualpace.cli.inputs import Format, SpecPath, load_plan
from dualpace.cli.terminal import write

# Wide enough for the tables; wider bars say no more.
WIDTHS = range(60, 121)


def plan(
    spec: SpecPath,
    format_: Annotated[Format, typer.Option("--format", help="How the plan is written.")] = Format.TEXT,
) -> None:
    """Show what a spec resolves to: sizes, pages, step programs, memory, floor and forecast of its speed."""
    from dualpace.plan.report import json_report, text_report

    found = load_plan(spec)
    write(json_report(found) if format_ is Format.JSON else text_report(found, *_canvas()))


def _canvas() -> tuple[int, str]:
    """The width of a bar and the glyphs that stdout can show."""
    from dualpace.plan.bar import ASCII, BLOCKS

    columns = shutil.get_terminal_size((100, 24)).columns
    unicode = (sys.stdout.encoding or "").lower().startswith("utf")
    return min(max(columns, WIDTHS.start), WIDTHS.stop - 1), BLOCKS if unicode else ASCII
