"""The `dualpace` command: the only place that prints and sets exit codes.

Commands import what they need when they run, so that `dualpace lint` starts in a fraction of a second.
"""

from __future__ import annotations

import os
import sys
import traceback
from enum import IntEnum, StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn, TextIO

import typer

from dualpace import __version__

if TYPE_CHECKING:
    from dualpace.lint.runner import Result
    from dualpace.plan.plan import Plan

app = typer.Typer(
    help="Compile a YAML deployment spec into an LLM serving appliance.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


class Exit(IntEnum):
    """Exit codes of every command."""

    CLEAN = 0
    FINDINGS = 1
    USAGE = 2
    INTERNAL = 3


class Format(StrEnum):
    """Report formats."""

    TEXT = "text"
    JSON = "json"


class FailOn(StrEnum):
    """Least severity that fails a lint."""

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


SpecPath = Annotated[Path, typer.Argument(metavar="SPEC", help="The deployment spec, a YAML file.")]


def main() -> None:
    """The console entry point."""
    try:
        app()
    except OSError as error:
        fail(_reason(error))
    except Exception:  # what no command foresaw is a fault of ours, and says so
        traceback.print_exc()
        fail("internal error, please report it with the lines above", Exit.INTERNAL)


def fail(message: str, code: Exit = Exit.USAGE) -> NoReturn:
    """End the command with one line on stderr."""
    sys.stderr.write(f"dualpace: {message}\n")
    sys.exit(code)


def hub_cache() -> Path:
    """Where snapshots of the model hub lie on this machine."""
    home = Path(os.environ.get("HF_HOME", "~/.cache/huggingface"))
    return Path(os.environ.get("HF_HUB_CACHE", home / "hub")).expanduser()


def load_plan(path: Path) -> Plan:
    """The plan of the spec at `path`. A spec with errors ends the command, its findings on stderr."""
    from dualpace.lint.reports import REPORTS
    from dualpace.lint.runner import lint_file

    result = lint_file(path, hub_cache())
    if result.plan is None:
        _show(REPORTS[Format.TEXT]([result]), sys.stderr)
        raise typer.Exit(Exit.FINDINGS)
    return result.plan


def _version(wanted: bool) -> None:
    if wanted:
        _show(f"dualpace {__version__}\n")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Compile a YAML deployment spec into an LLM serving appliance."""


@app.command()
def lint(
    specs: Annotated[list[Path], typer.Argument(metavar="SPEC...", help="Deployment specs, YAML files.")],
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
            unreadable.append(_reason(error))
    _show(REPORTS[format_](results))
    if unreadable:
        fail("; ".join(unreadable))
    threshold = Severity[fail_on.name]
    if any(d.severity >= threshold for result in results for d in result.diagnostics):
        raise typer.Exit(Exit.FINDINGS)


@app.command()
def schema(
    check: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Compare with FILE instead of printing; exit 1 if it differs.")
    ] = None,
) -> None:
    """Print the JSON Schema of the spec, for editors."""
    from dualpace.spec.schema import schema_text

    text = schema_text()
    if check is None:
        _show(text)
    elif check.read_text(encoding="utf-8") != text:
        fail(f"{check} is out of date: run `dualpace schema > {check}`", Exit.FINDINGS)


def _reason(error: OSError) -> str:
    where = f"{error.filename}: " if error.filename else ""
    return f"{where}{error.strerror or error}"


def _show(text: str, stream: TextIO | None = None) -> None:
    """Write `text`, in colour on a terminal."""
    stream = stream or sys.stdout
    if not stream.isatty():
        stream.write(text)
        return
    from rich.console import Console

    from dualpace.lint.reports.colour import STYLES, Highlighter

    console = Console(file=stream, highlighter=Highlighter(), theme=STYLES, soft_wrap=True)
    console.print(text, end="", markup=False, emoji=False)


if __name__ == "__main__":
    main()
