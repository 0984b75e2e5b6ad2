"""`serve` and `generate`: start a bundle's processes, and see them end."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dualpace.cli.build import build_plan
from dualpace.cli.inputs import SourcePath, StorePath, ThreadCount, load_plan
from dualpace.cli.terminal import fail, show, write
from dualpace.exits import Exit

if TYPE_CHECKING:
    from collections.abc import Callable

    from dualpace.plan.manifest import Manifest
    from dualpace.plan.plan import Plan


def serve(
    source: SourcePath,
    host: Annotated[
        str | None, typer.Option(envvar="DUALPACE_HOST", help="Address to listen on.", show_default="the spec's")
    ] = None,
    port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="TCP port; 0 picks one.", show_default="the spec's")
    ] = None,
    threads: ThreadCount = 0,
    verify_weights: Annotated[
        bool,
        typer.Option(
            "--verify-weights/--no-verify-weights",
            envvar="DUALPACE_VERIFY_WEIGHTS",
            help="Compare the checkpoint's hashes with those of the build.",
        ),
    ] = False,
    store: StorePath = None,
) -> None:
    """Serve a spec, building it first, or a bundle, until interrupted."""
    from dualpace.address import shown
    from dualpace.build.progress import report_to
    from dualpace.launch import Appliance, LaunchError, end_on_signals

    bundle, manifest = served(source, store, lambda plan: _refuse_address(plan, host, port))
    address = _address(manifest.plan, host, port)
    end_on_signals()
    try:
        _check_machine(bundle, manifest, hashes=verify_weights)
        with Appliance(bundle, manifest, *address, threads) as appliance:
            with report_to(sys.stderr) as progress:
                appliance.start(progress.step)
            if nic := appliance.gate:
                where = shown(nic.gate_host, nic.gate_port)
                show(f"ready, frontends come in at {where}: `dualpace frontend`; Ctrl-C ends\n", sys.stderr)
            else:
                show(f"ready at {appliance.url}, Ctrl-C drains and ends\n", sys.stderr)
            appliance.wait(lambda line: show(f"{line}\n", sys.stderr))
    except KeyboardInterrupt:
        return
    except LaunchError as error:
        fail(str(error), error.code)


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
    from dualpace.plan.api_keys import read_api_keys
    from dualpace.plan.manifest import BundleError

    bundle, manifest = served(source, store, refuse_remote)
    serving = manifest.plan.serving
    try:
        keys = read_api_keys(serving.api_key_file)
    except BundleError as error:
        fail(str(error))
    request = {
        "model": serving.model_name,
        "prompt": prompt,
        "max_tokens": max_tokens,
        "temperature": temperature,
        "seed": seed,
    }
    end_on_signals()
    _check_machine(bundle, manifest, hashes=False)
    try:
        with Appliance(bundle, manifest, "127.0.0.1", 0, threads, quiet=True) as appliance:
            with report_to(sys.stderr) as progress:
                appliance.start(progress.step)
            echo = iter([prompt])
            key = keys[0].key.decode("latin-1") if keys else ""
            timing = complete(appliance.connection(), key, request, lambda text: write(next(echo, "") + text))
            write("\n")
    except LaunchError as error:
        fail(str(error), error.code)
    except CompletionError as error:
        fail(str(error))
    rate = f"{1 / timing.tpot:.1f} tokens/s" if timing.tpot else "one token"
    show(
        f"{timing.tokens} tokens: TTFT {1e3 * timing.ttft:.0f} ms, TPOT {1e3 * timing.tpot:.1f} ms, {rate}\n",
        sys.stderr,
    )


def served(
    source: Path, store: Path | None, refuse: Callable[[Plan], None] = lambda plan: None
) -> tuple[Path, Manifest]:
    """The bundle `source`, or that of the spec `source`, built if need be.

    What cannot be served here is refused before it is built, or its weights are looked at; `refuse` ends the command
    for what it finds wrong.
    """
    from dualpace import gpu
    from dualpace.build.prepare import absent
    from dualpace.plan.manifest import BundleError, read_manifest

    try:
        manifest = read_manifest(source) if source.is_dir() else None
    except BundleError as error:
        fail(str(error))
    if manifest is not None:
        refuse(manifest.plan)
        return source, manifest
    plan = load_plan(source)
    if plan.target.kind == "cuda" and not gpu.there_is_one():
        fail(gpu.lacking(str(source), plan.target.name))
    refuse(plan)
    if complaint := absent(plan):
        fail(complaint, Exit.WEIGHTS)
    return build_plan(source, plan, None, store)


def refuse_remote(plan: Plan) -> None:
    """End the command if no frontend would be started here."""
    if plan.nic:
        fail("nic.transport is rdma and no frontend is started here: use `serve`, and `dualpace frontend` elsewhere")


def _check_machine(bundle: Path, manifest: Manifest, *, hashes: bool) -> None:
    """End the command if this machine or its checkpoint is not what `bundle` was built for."""
    from dualpace.preflight import RefusedError, check

    try:
        check(bundle, manifest, hashes=hashes)
    except RefusedError as error:
        fail(str(error), error.code)


def _address(plan: Plan, host: str | None, port: int | None) -> tuple[str, int]:
    return host or plan.serving.host, plan.serving.port if port is None else port


def _refuse_address(plan: Plan, host: str | None, port: int | None) -> None:
    """End the command if the address cannot be had, or is nobody's."""
    from dualpace.address import bound, refused

    if plan.nic:
        if host is not None or port is not None:
            fail("--host and --port are a frontend's, and none is started here with rdma: change nic.gate")
        return
    address = _address(plan, host, port)
    try:
        bound(*address).close()
    except OSError as error:
        fail(refused(*address, error))
