"""`lint`: findings in specs."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dualpace.cli.inputs import Format, hub_cache
from dualpace.cli.terminal import Exit, fail, reason, show

if TYPE_CHECKING:
    from dualpace.lint.runner import Result


class FailOn(StrEnum):
    """Least severity that fails a lint."""

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


def lint(
    specs: Annotated[list[Path], typer.Argument(metavar="SPEC", help="Deployment specs, YAML files.")],
    format_: Annotated[Format, typer.Option("--format", help="How findings are written.")] = Format.TEXT,
    fail_on: Annotated[
        FailOn, typer.Option("--fail-on", help="Least severity that makes the exit code 1.")
    ] = FailOn.WARNING,
) -> None:
    """Check specs and report every finding with its place and remedy."""
    from dualpace.diagnostic import Severity
    from dualpace.lint.reports import REPORTS
    from dualpace.lint.runner import lint_file

    results: list[Result] = []
    unreadable: list[str] = []
    for path in specs:
        try:
            results.append(lint_file(path, hub_cache()))
        except OSError as error:
            unreadable.append(reason(error))
    show(REPORTS[format_](results))
    if unreadable:
        fail("; ".join(unreadable))
    threshold = Severity[fail_on.name]
    if any(d.severity >= threshold for result in results for d in result.diagnostics):
        raise typer.Exit(Exit.FINDINGS)
