"""The `dualpace` command: the only place that prints and sets exit codes.

Commands import what they need when they run, so that `dualpace lint` starts in a fraction of a second.
"""

from __future__ import annotations

import os
import sys
import time
import traceback
from enum import IntEnum, StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn, TextIO

import typer

from dualpace import __version__

if TYPE_CHECKING:
    from dualpace.build.errors import BuildError
    from dualpace.lint.runner import Result
    from dualpace.plan.manifest import Manifest
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
SourcePath = Annotated[
    Path,
    typer.Argument(metavar="SPEC|BUNDLE", exists=True, help="A deployment spec, or a bundle that was built of one."),
]
StorePath = Annotated[
    Path | None,
    typer.Option(metavar="DIR", envvar="DUALPACE_STORE", help="What builds keep.", show_default="~/.cache/dualpace"),
]
ThreadCount = Annotated[int, typer.Option(min=0, help="Threads of the engine; 0 lets it choose.")]


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
    """The plan of the spec at `path`. Findings go to stderr; a spec with errors ends the command."""
    from dualpace.lint.reports import REPORTS
    from dualpace.lint.runner import lint_file

    result = lint_file(path, hub_cache())
    _show(REPORTS[Format.TEXT]([result]), sys.stderr)
    if result.plan is None:
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
    specs: Annotated[list[Path], typer.Argument(metavar="SPEC", help="Deployment specs, YAML files.")],
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


@app.command("plan")
def show_plan(
    spec: SpecPath,
    format_: Annotated[Format, typer.Option("--format", help="How the plan is written.")] = Format.TEXT,
) -> None:
    """Show what a spec resolves to: sizes, pages, step programs, memory, the roofline floor."""
    from dualpace.plan.report import json_report, text_report

    report = json_report if format_ is Format.JSON else text_report
    _write(report(load_plan(spec)))


@app.command()
def render(
    spec: SpecPath, output: Annotated[Path, typer.Option("-o", "--output", metavar="DIR", help="Where to write.")]
) -> None:
    """Write the sources that a spec compiles to."""
    from dualpace.render.sources import RenderError
    from dualpace.render.sources import render as sources_of

    plan = load_plan(spec)
    try:
        sources = sources_of(plan)
    except RenderError as error:
        fail(str(error))
    for path, text in sources.items():
        file = output / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
        _show(f"{file}\n")


@app.command()
def build(
    spec: SpecPath,
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", metavar="DIR", help="The bundle.", show_default="<name>.bundle"),
    ] = None,
    no_image: Annotated[bool, typer.Option("--no-image", help="Build no container image.")] = False,
    store: StorePath = None,
) -> None:
    """Compile a spec into a bundle, the folder that it is served from."""
    _build(spec, load_plan(spec), output, store)
    if not no_image:
        _show("no container image was built: this version makes bundles only\n", sys.stderr)


@app.command()
def serve(
    source: SourcePath,
    host: Annotated[str | None, typer.Option(help="Address to listen on.", show_default="the spec's")] = None,
    port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="TCP port; 0 picks one.", show_default="the spec's")
    ] = None,
    threads: ThreadCount = 0,
    store: StorePath = None,
) -> None:
    """Serve a spec, building it first, or a bundle, until interrupted."""
    from dualpace.build.progress import report_to
    from dualpace.launch import Appliance, LaunchError, end_on_signals

    bundle, manifest = _served(source, store)
    serving = manifest.plan.serving
    end_on_signals()
    try:
        with Appliance(
            bundle, manifest, host or serving.host, serving.port if port is None else port, threads
        ) as appliance:
            with report_to(sys.stderr) as progress:
                appliance.start(progress.step)
            _show(f"ready at {appliance.url}, Ctrl-C drains and ends\n", sys.stderr)
            appliance.wait()
    except KeyboardInterrupt:
        return
    except LaunchError as error:
        fail(str(error), Exit.USAGE if error.usage else Exit.INTERNAL)


@app.command()
def generate(
    source: SourcePath,
    prompt: Annotated[str, typer.Option(help="The text to continue.")],
    max_tokens: Annotated[int, typer.Option(min=1, help="Most tokens to generate.")] = 128,
    temperature: Annotated[float, typer.Option(min=0.0, max=2.0, help="0 takes the likeliest token.")] = 0.0,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the sampling.")] = 0,
    threads: ThreadCount = 0,
    store: StorePath = None,
) -> None:
    """Start a spec or bundle, stream one completion to the terminal and end."""
    from dualpace.build.progress import report_to
    from dualpace.completion import CompletionError, complete
    from dualpace.launch import Appliance, LaunchError, end_on_signals

    bundle, manifest = _served(source, store)
    serving = manifest.plan.serving
    keys = Path(serving.api_key_file).read_text(encoding="utf-8").split() if serving.api_key_file else []
    request = {
        "model": serving.model_name,
        "prompt": prompt,
        "max_tokens": max_tokens,
        "temperature": temperature,
        "seed": seed,
    }
    end_on_signals()
    try:
        with Appliance(bundle, manifest, "127.0.0.1", 0, threads, quiet=True) as appliance:
            with report_to(sys.stderr) as progress:
                appliance.start(progress.step)
            _write(prompt)
            timing = complete(appliance.address, keys[0] if keys else "", request, _write)
            _write("\n")
    except KeyboardInterrupt:
        raise typer.Exit(Exit.USAGE) from None
    except LaunchError as error:
        fail(str(error), Exit.USAGE if error.usage else Exit.INTERNAL)
    except CompletionError as error:
        fail(str(error))
    rate = f"{1 / timing.tpot:.1f} tokens/s" if timing.tpot else "one token"
    _show(
        f"{timing.tokens} tokens: TTFT {1e3 * timing.ttft:.0f} ms, TPOT {1e3 * timing.tpot:.1f} ms, {rate}\n",
        sys.stderr,
    )


def _served(source: Path, store: Path | None) -> tuple[Path, Manifest]:
    """The bundle `source`, or that of the spec `source`, built if need be; a target that nothing serves is refused."""
    from dualpace.launch import LaunchError, refuse_unserved
    from dualpace.plan.manifest import BundleError, read_manifest

    try:
        if source.is_dir():
            manifest = read_manifest(source)
            refuse_unserved(manifest.plan)
            return source, manifest
        plan = load_plan(source)
        refuse_unserved(plan)
    except (BundleError, LaunchError) as error:
        fail(str(error))
    return _build(source, plan, None, store)


def _build(spec: Path, plan: Plan, output: Path | None, store: Path | None) -> tuple[Path, Manifest]:
    from dualpace.build.bundle import build as build_bundle
    from dualpace.build.errors import BuildError
    from dualpace.build.progress import report_to
    from dualpace.build.store import Store

    output = output or Path(f"{plan.name}.bundle")
    root = store or Path.home() / ".cache" / "dualpace"
    start = time.monotonic()
    try:
        with report_to(sys.stderr) as progress:
            manifest = build_bundle(plan, output, Store(root.absolute()), progress)
    except BuildError as error:
        _fail_build(spec, error)
    _show(f"{output} is built, digest {manifest.digest[:16]}, {time.monotonic() - start:.1f} s\n", sys.stderr)
    return output, manifest


def _fail_build(spec: Path, error: BuildError) -> NoReturn:
    from dualpace.spec.compose import read_document

    if error.output:
        _show(error.output.rstrip() + "\n", sys.stderr)
    if not error.key:
        fail(str(error))
    span = read_document(spec).span(tuple(error.key.split(".")))
    fail(f"{spec}:{span.line}:{span.col}: {error}", Exit.FINDINGS)


def _reason(error: OSError) -> str:
    where = f"{error.filename}: " if error.filename else ""
    return f"{where}{error.strerror or error}"


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


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
