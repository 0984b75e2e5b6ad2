"""`health`: whether a request would be taken, for a container's health check."""

from __future__ import annotations

import http.client
import urllib.error
import urllib.request
from typing import Annotated

import typer

from dualpace.cli.terminal import Exit, fail, show
from dualpace.run_folder import PREFIX, SHARED_MEMORY

SECONDS = 4.0


def health(
    url: Annotated[
        str, typer.Argument(metavar="[URL]", help="Where it is served.", show_default="what runs on this machine")
    ] = "",
) -> None:
    """Ask a deployment whether it takes requests: its engine's heartbeat decides. Exit code 0 if so, else 1."""
    url = url or _running()
    try:
        with urllib.request.urlopen(f"{url.rstrip('/')}/health", timeout=SECONDS) as answer:
            show(f"{url}: healthy, {answer.status}\n")
    except urllib.error.HTTPError as error:
        fail(f"{url}: {error.code} {error.read(300).decode(errors='replace').strip()}", Exit.FINDINGS)
    except (OSError, ValueError, http.client.HTTPException) as error:
        fail(f"{url}: {error}", Exit.FINDINGS)


def _running() -> str:
    """The address of the deployment that runs here, by the port that its frontend has told."""
    ports = sorted(SHARED_MEMORY.glob(f"{PREFIX}*/*.port"))
    if not ports:
        fail("nothing is served on this machine yet", Exit.FINDINGS)
    return f"http://127.0.0.1:{ports[0].read_text().strip()}"
