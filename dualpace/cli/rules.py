"""`rules`: what a lint can find, and why."""

from __future__ import annotations

from typing import Annotated

import typer

from dualpace.cli.terminal import fail, show, write


def rules(
    ids: Annotated[list[str] | None, typer.Argument(metavar="ID", help="Ids or slugs of findings to explain.")] = None,
    markdown: Annotated[bool, typer.Option("--markdown", help="Write all of them as a page.")] = False,
) -> None:
    """List what a lint can find, or explain some of it with a bad and a good spec."""
    from dualpace.lint import explain

    if markdown:
        write(explain.page())
        return
    known = {name: entry for entry in explain.CATALOGUE for name in (entry.id, entry.slug)}
    unknown = [name for name in ids or () if name not in known]
    if unknown:
        fail(f"nothing is called {', '.join(unknown)}: `dualpace rules` lists what there is")
    show("\n".join(explain.explanation(known[name]) for name in ids) if ids else explain.listing())
