"""`top`: a running appliance at a glance, in the terminal."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from dualpace.cli.terminal import fail


def top(
    url: Annotated[str, typer.Argument(metavar="URL", help="Where the appliance serves.")] = "http://127.0.0.1:8000",
    interval: Annotated[float, typer.Option(min=0.2, max=10.0, help="Seconds between looks.")] = 1.0,
    once: Annotated[bool, typer.Option("--once", help="Look twice, print that and end.")] = False,
    api_key_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The first API key in it is used, where keys are needed.")
    ] = None,
) -> None:
    """Watch a running appliance: load, TTFT, TPOT, KV pages and totals, as its status page has them."""
    from rich.console import Console, Group
    from rich.live import Live

    from dualpace.address import base_of
    from dualpace.cli.top_view import ASCII_BARS, BARS, View, lost
    from dualpace.scrape import Looks, ScrapeError, scrape, unavailable

    base = base_of(url)
    key = _key(api_key_file)
    looks = Looks()
    console = Console(file=sys.stdout)
    view = View(BARS if console.encoding.startswith("utf") else ASCII_BARS)

    def look() -> Group:
        looks.add(scrape(base, key))
        return view.of(looks, None if looks.value("dualpace_ready") else unavailable(base))

    try:
        frame = look()
        if once or not console.is_terminal:
            time.sleep(interval)
            console.print(look())
            return
        with Live(frame, console=console, screen=True, auto_refresh=False) as live:
            while True:
                time.sleep(interval)
                try:
                    frame = look()
                except ScrapeError as error:
                    frame = lost(str(error))
                live.update(frame, refresh=True)
    except ScrapeError as error:
        fail(str(error))
    except KeyboardInterrupt:
        return


def _key(file: Path | None) -> str:
    from dualpace.plan.api_keys import read_api_keys
    from dualpace.plan.manifest import BundleError

    if file is None:
        return ""
    try:
        return read_api_keys(str(file))[0].key.decode("latin-1")
    except BundleError as error:
        fail(str(error))
