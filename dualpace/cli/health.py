"""`health`: whether a request would be taken, for a container's health check."""

from __future__ import annotations

import http.client
import ssl
import urllib.error
import urllib.request
from typing import Annotated

import typer

from dualpace.cli.terminal import Exit, fail, show
from dualpace.run_folder import ADDRESS, PREFIX, SHARED_MEMORY

SECONDS = 4.0


def health(
    url: Annotated[
        str, typer.Argument(metavar="[URL]", help="Where it is served.", show_default="what runs on this machine")
    ] = "",
) -> None:
    """Ask a deployment whether it takes requests: its engine's heartbeat decides. Exit code 0 if so, else 1."""
    context = None
    if not url:
        url = _running()
        # Its certificate names the address at which others know it.
        context = _trusting() if url.startswith("https:") else None
    try:
        with urllib.request.urlopen(f"{url.rstrip('/')}/health", timeout=SECONDS, context=context) as answer:
            show(f"{url}: healthy, {answer.status}\n")
    except urllib.error.HTTPError as error:
        fail(f"{url}: {error.code} {error.read(300).decode(errors='replace').strip()}", Exit.FINDINGS)
    except (OSError, ValueError, http.client.HTTPException) as error:
        fail(f"{url}: {error}", Exit.FINDINGS)


def _running() -> str:
    """The URL of the deployment that runs here."""
    addresses = sorted(SHARED_MEMORY.glob(f"{PREFIX}*/{ADDRESS}"))
    if not addresses:
        fail("nothing is served on this machine yet", Exit.FINDINGS)
    return addresses[0].read_text()


def _trusting() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context
