"""`render` and `build`: from a spec to sources and to a bundle."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from dualpace.cli.inputs import SpecPath, StorePath, load_plan, store_folder
from dualpace.cli.terminal import Exit, fail, show

if TYPE_CHECKING:
    from dualpace.build.errors import BuildError
    from dualpace.build.image import Options
    from dualpace.plan.manifest import Manifest
    from dualpace.plan.plan import Plan


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
    foreign = output.is_dir() and {file.relative_to(output).as_posix() for file in output.rglob("*") if file.is_file()}
    if foreign and not foreign <= sources.keys():
        fail(f"{output} holds {min(foreign - sources.keys())}, which is not of this spec: name another folder with -o")
    for path, text in sources.items():
        file = output / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
        show(f"{file}\n")


def build(
    spec: SpecPath,
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", metavar="DIR", help="The bundle.", show_default="<name>.bundle"),
    ] = None,
    no_image: Annotated[bool, typer.Option("--no-image", help="Build no container image.")] = False,
    image: Annotated[str, typer.Option(metavar="NAME", help="Repository of the image.")] = "dualpace-appliance",
    bake_weights: Annotated[bool, typer.Option("--bake-weights", help="Put the weights into the image.")] = False,
    push: Annotated[bool, typer.Option("--push", help="Push the image.")] = False,
    compile_base: Annotated[
        str, typer.Option(metavar="IMAGE", help="Base with Python to compile on.", show_default="the target's")
    ] = "",
    runtime_base: Annotated[
        str, typer.Option(metavar="IMAGE", help="Base of the image itself.", show_default="the target's")
    ] = "",
    cache: Annotated[bool, typer.Option("--cache/--no-cache", help="Use layers that the engine has.")] = True,
    store: StorePath = None,
) -> None:
    """Compile a spec into a bundle, the folder that it is served from, and into a container image of it."""
    from dualpace.build.errors import BuildError
    from dualpace.build.image import Options, published_port

    for option, given in (("--push", push), ("--bake-weights", bake_weights)):
        if no_image and given:
            fail(f"{option} is about the image, which --no-image leaves out: give one of the two")
    plan = load_plan(spec)
    if plan.nic and not no_image:
        fail("nic.transport rdma is not served in containers yet: build with --no-image")
    if not no_image:
        try:
            published_port(plan)
        except BuildError as error:
            fail_build(spec, error)
    bundle, manifest = build_plan(spec, plan, output, store)
    if not no_image:
        options = Options(
            repository=image,
            compile_base=compile_base,
            runtime_base=runtime_base,
            bake_weights=bake_weights,
            cache=cache,
        )
        _build_image(spec, bundle, manifest, options, store, push)


def _build_image(
    spec: Path, bundle: Path, manifest: Manifest, options: Options, store: Path | None, pushed: bool
) -> None:
    from dualpace.build.errors import BuildError
    from dualpace.build.image import NoEngineError, build_image, connect, push, run_line
    from dualpace.build.progress import report_to
    from dualpace.build.store import Store

    start = time.monotonic()
    try:
        client = connect()
        with report_to(sys.stderr) as progress:
            names = build_image(client, spec, bundle, manifest, options, Store(store_folder(store)), progress)
            if pushed:
                push(client, names, progress)
    except NoEngineError as error:
        fail(f"{error}; the bundle {bundle} is built")
    except BuildError as error:
        fail_build(spec, error)
    show(f"{' and '.join(names)}: {time.monotonic() - start:.1f} s; to serve it:\n", sys.stderr)
    show(run_line(manifest, names[0], baked=options.bake_weights) + "\n")


def build_plan(spec: Path, plan: Plan, output: Path | None, store: Path | None) -> tuple[Path, Manifest]:
    """Build `plan`, that of the spec at `spec`, into its bundle; a build that fails ends the command."""
    from dualpace.build.bundle import build as build_bundle
    from dualpace.build.errors import BuildError
    from dualpace.build.progress import report_to
    from dualpace.build.store import Store

    output = output or Path(f"{plan.name}.bundle")
    start = time.monotonic()
    try:
        with report_to(sys.stderr) as progress:
            manifest = build_bundle(plan, output, Store(store_folder(store)), progress)
    except BuildError as error:
        fail_build(spec, error)
    show(f"{output} is built, digest {manifest.digest[:16]}, {time.monotonic() - start:.1f} s\n", sys.stderr)
    return output, manifest


def fail_build(spec: Path, error: BuildError) -> NoReturn:
    """End the command with `error`, at the place in the spec that it is about."""
    from dualpace.spec.compose import read_document

    if error.output:
        show(error.output.rstrip() + "\n", sys.stderr)
    if not error.key:
        fail(str(error))
    span = read_document(spec).span(tuple(error.key.split(".")))
    fail(f"{spec}:{span.line}:{span.col}: {error}", Exit.FINDINGS)
