"""The commands, in the order in which help lists them, and the console entry point."""

from __future__ import annotations

import gc
import os
import traceback
from typing import Annotated

import typer

from dualpace import __version__
from dualpace.cli.bench import bench
from dualpace.cli.build import build, render
from dualpace.cli.calibrate import calibrate
from dualpace.cli.frontend import frontend
from dualpace.cli.health import health
from dualpace.cli.lint import lint
from dualpace.cli.manifest import manifest
from dualpace.cli.plan import plan
from dualpace.cli.rules import rules
from dualpace.cli.schema import schema
from dualpace.cli.serve import generate, serve
from dualpace.cli.terminal import Exit, fail, open_streams, reason, show
from dualpace.cli.top import top

app = typer.Typer(
    help="Compile a YAML deployment spec into an LLM serving appliance.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


def main() -> None:
    """The console entry point."""
    # Start-up: what a command makes lives until it ends, and pydantic would read all installed packages' metadata.
    gc.set_threshold(50_000)
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    open_streams()
    try:
        app()
    except KeyboardInterrupt:
        fail("interrupted", Exit.INTERRUPTED)
    except OSError as error:
        fail(reason(error))
    except Exception:  # what no command foresaw is a fault of ours, and says so
        traceback.print_exc()
        fail("internal error, please report it with the lines above", Exit.INTERNAL)


def _version(wanted: bool) -> None:
    if wanted:
        show(f"dualpace {__version__}\n")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Compile a YAML deployment spec into an LLM serving appliance."""


for command in (lint, rules, schema, plan, render, build, calibrate, serve, frontend, generate, health, top, manifest):
    app.command()(command)
app.add_typer(bench, name="bench")
