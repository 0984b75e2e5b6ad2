"""`health`: whether a request would be taken, for a container's health check."""

from __future__ import annotations

import http.client
import ssl
import sys
import urllib.error
import urllib.request
from typing import Annotated

import typer

from dualpace.address import base_of, unreached
from dualpace.cli.terminal import Exit, fail, show
from dualpace.run_folder import served_here

SECONDS = 4.0


def health(
    url: Annotated[
        str, typer.Argument(metavar="[URL]", help="Where it is served.", show_default="all that runs on this machine")
    ] = "",
) -> None:
    """Ask a deployment whether it takes requests: its engine's heartbeat decides. Exit code 0 if each does, else 1."""
    urls = [base_of(url)] if url else served_here()
    if not urls:
        fail("nothing is served on this machine yet", Exit.FINDINGS)
    # A deployment's certificate names the address at which others know it.
    complaints = [_complaint(each, None if url else _trusting()) for each in urls]
    for each, complaint in zip(urls, complaints, strict=True):
        if complaint is None:
            show(f"{each}: healthy\n")
        else:
            show(f"dualpace: {each}: {complaint}\n", sys.stderr)
    if any(complaints):
        sys.exit(Exit.FINDINGS)


def _complaint(url: str, context: ssl.SSLContext | None) -> str | None:
    """Why what is served at `url` takes no request; None if it does."""
    context = context if url.startswith("https:") else None
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=SECONDS, context=context):
            return None
    except urllib.error.HTTPError as error:
        return f"{error.code} {error.read(300).decode(errors='replace').strip()}"
    except (OSError, ValueError, http.client.HTTPException) as error:
        return unreached(getattr(error, "reason", error))


def _trusting() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context
