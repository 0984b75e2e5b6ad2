"""`schema`: the spec's JSON Schema."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dualpace.cli.terminal import Exit, fail, show


def schema(
    check: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Compare with FILE instead of printing; exit 1 if it differs.")
    ] = None,
) -> None:
    """Print the JSON Schema of the spec, for editors."""
    from dualpace.spec.schema import schema_text

    text = schema_text()
    if check is None:
        show(text)
    elif check.read_text(encoding="utf-8") != text:
        fail(f"{check} is out of date: run `dualpace schema > {check}`", Exit.FINDINGS)
