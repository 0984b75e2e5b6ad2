"""`lint`: findings in specs, and the remedies that take no decision."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dualpace.cli.inputs import hub_cache
from dualpace.cli.terminal import Exit, fail, reason, show, write

if TYPE_CHECKING:
    from dualpace.lint.runner import Result

STDIN = Path("-")
SUFFIXES = (".yaml", ".yml")


class ReportFormat(StrEnum):
    """How findings are written."""

    TEXT = "text"
    JSON = "json"
    GITHUB = "github"
    SARIF = "sarif"


class FailOn(StrEnum):
    """Least severity that fails a lint."""

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


def lint(
    specs: Annotated[
        list[Path],
        typer.Argument(metavar="SPEC", help="Specs: YAML files, folders of them, patterns, or - for stdin."),
    ],
    format_: Annotated[ReportFormat, typer.Option("--format", help="How findings are written.")] = ReportFormat.TEXT,
    fail_on: Annotated[
        FailOn, typer.Option("--fail-on", help="Least severity that makes the exit code 1.")
    ] = FailOn.WARNING,
    fix: Annotated[bool, typer.Option("--fix", help="Write the remedies that take no decision.")] = False,
    diff: Annotated[bool, typer.Option("--diff", help="Show what --fix would write, and write nothing.")] = False,
) -> None:
    """Check specs and report every finding with its place and remedy."""
    from dualpace.diagnostic import Severity
    from dualpace.lint.reports import report
    from dualpace.lint.runner import repair

    results: list[Result] = []
    unreadable: list[str] = []
    changed = False
    for path in dict.fromkeys(file for given in specs for file in _files(given)):
        try:
            result = _lint(path)
        except OSError as error:
            unreadable.append(reason(error))
            continue
        if fix or diff:
            repaired = repair(result, path.parent, hub_cache())
            changed |= _emit(path, result, repaired, diff)
            result = repaired
        results.append(result)
    # The text that a fix of stdin gives, and a diff, have stdout for themselves.
    show(report(format_, results), sys.stderr if diff or (fix and STDIN in specs) else sys.stdout)
    if unreadable:
        fail("; ".join(unreadable))
    threshold = Severity[fail_on.name]
    if (diff and changed) or any(d.severity >= threshold for result in results for d in result.diagnostics):
        raise typer.Exit(Exit.FINDINGS)


def _files(given: Path) -> Iterator[Path]:
    """The specs that an argument names, by paths relative to the working directory where they lie in it."""
    if given == STDIN:
        yield given
        return
    if given.is_absolute() and given.is_relative_to(Path.cwd()):
        given = given.relative_to(Path.cwd())
    if given.is_dir():
        yield from sorted(path for path in given.rglob("*") if _is_spec(path, given))
    elif set(str(given)) & set("*?[") and not given.exists():
        root = Path(given.anchor)
        yield from sorted(root.glob(str(given.relative_to(root)))) or [given]
    else:
        yield given


def _is_spec(path: Path, folder: Path) -> bool:
    hidden = any(part.startswith(".") for part in path.relative_to(folder).parts)
    return path.suffix in SUFFIXES and not hidden and path.is_file()


def _lint(path: Path) -> Result:
    from dualpace.lint.runner import lint_document, lint_file
    from dualpace.spec.compose import compose

    if path == STDIN:
        return lint_document(compose(sys.stdin.buffer.read(), "<stdin>"), Path(), hub_cache())
    return lint_file(path, hub_cache())


def _emit(path: Path, before: Result, after: Result, as_diff: bool) -> bool:
    """Write what has changed to where it belongs; whether anything has."""
    old, new = before.document.text, after.document.text
    if as_diff:
        name = before.document.file
        lines = difflib.unified_diff(old.splitlines(keepends=True), new.splitlines(keepends=True), name, name)
        write("".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines))
    elif path == STDIN:
        write(new)
    elif old != new:
        path.write_bytes(new.encode())
        show(f"{path}: fixed\n", sys.stderr)
    return old != new
