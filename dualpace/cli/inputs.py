"""Arguments that several commands share, and the way from a spec's path to its plan."""

from __future__ import annotations

import os
import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dualpace.cli.terminal import Exit, show

if TYPE_CHECKING:
    from dualpace.plan.plan import Plan

SpecPath = Annotated[Path, typer.Argument(metavar="SPEC", help="The deployment spec, a YAML file.")]
SourcePath = Annotated[
    Path,
    typer.Argument(
        metavar="SPEC|BUNDLE",
        exists=True,
        envvar="DUALPACE_BUNDLE",
        help="A deployment spec, or a bundle that was built of one.",
    ),
]
StorePath = Annotated[
    Path | None,
    typer.Option(metavar="DIR", envvar="DUALPACE_STORE", help="What builds keep.", show_default="~/.cache/dualpace"),
]
ThreadCount = Annotated[int, typer.Option(min=0, help="Threads of the engine; 0 lets it choose.")]


class Format(StrEnum):
    """Report formats."""

    TEXT = "text"
    JSON = "json"


def hub_cache() -> Path:
    """Where snapshots of the model hub lie on this machine."""
    home = Path(os.environ.get("HF_HOME", "~/.cache/huggingface"))
    return Path(os.environ.get("HF_HUB_CACHE", home / "hub")).expanduser()


def store_folder(named: Path | None) -> Path:
    """Where builds keep what they have compiled, unless another folder is `named`."""
    return (named or Path.home() / ".cache" / "dualpace").absolute()


def load_plan(path: Path) -> Plan:
    """The plan of the spec at `path`. Findings go to stderr; a spec with errors ends the command."""
    from dualpace.lint.reports import report
    from dualpace.lint.runner import lint_file

    result = lint_file(path, hub_cache())
    show(report(Format.TEXT, [result]), sys.stderr)
    if result.plan is None:
        raise typer.Exit(Exit.FINDINGS)
    return result.plan
