"""`plan`: what a spec resolves to, beside another spec or with some of its values changed."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dualpace.cli.inputs import Format, SpecPath, hub_cache, load_plan
from dualpace.cli.terminal import Exit, fail, write

if TYPE_CHECKING:
    from dualpace.plan.plan import Plan

# Wide enough for the tables; wider bars say no more.
WIDTHS = range(60, 121)


def plan(
    spec: SpecPath,
    other: Annotated[Path | None, typer.Argument(metavar="[OTHER]", help="Show what differs in this one.")] = None,
    what_if: Annotated[
        list[str] | None,
        typer.Option(
            "--what-if",
            metavar="KEY=VALUE",
            help="Show what differs with a value changed, like max_batch=64 or attention.page_size=32; repeatable.",
        ),
    ] = None,
    format_: Annotated[Format, typer.Option("--format", help="How the plan is written.")] = Format.TEXT,
) -> None:
    """Show what a spec resolves to: sizes, pages, step programs, memory, floor and forecast of its speed."""
    from dualpace.plan.comparison import json_comparison, text_comparison
    from dualpace.plan.report import json_report, text_report

    if other and what_if:
        fail("--what-if changes one spec: name no other")
    found = load_plan(spec)
    if not other and not what_if:
        write(json_report(found) if format_ is Format.JSON else text_report(found, *_canvas()))
        return
    beside, changes = (load_plan(other), []) if other else _changed(spec, what_if or [])
    if format_ is Format.JSON:
        write(json_comparison(found, beside, changes))
    else:
        labels = str(spec), str(other or f"with {', '.join(changes)}")
        write(text_comparison(found, beside, labels, *_canvas()))


def _changed(spec: Path, what_if: list[str]) -> tuple[Plan, list[str]]:
    """The plan of `spec` with changes, and these with the full names of their fields."""
    from dualpace.plan.what_if import WhatIfError, changed_plan, parse_change
    from dualpace.spec.compose import read_document

    try:
        changes = [parse_change(text) for text in what_if]
        return changed_plan(read_document(spec), changes, spec.parent, hub_cache()), [str(each) for each in changes]
    except WhatIfError as error:
        fail(f"--what-if {error}", Exit.FINDINGS)


def _canvas() -> tuple[int, str]:
    """The width of a bar and the glyphs that stdout can show."""
    from dualpace.plan.bar import ASCII, BLOCKS

    columns = shutil.get_terminal_size((100, 24)).columns
    unicode = (sys.stdout.encoding or "").lower().startswith("utf")
    return min(max(columns, WIDTHS.start), WIDTHS.stop - 1), BLOCKS if unicode else ASCII
