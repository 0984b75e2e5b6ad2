"""Plan to bundle: the folder that a deployment is served from."""

import contextlib
import platform
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from dualpace import __version__
from dualpace.build.compile import compile_libraries
from dualpace.build.errors import BuildError
from dualpace.build.headers import find_headers
from dualpace.build.prepare import prepare_model
from dualpace.build.progress import Progress
from dualpace.build.store import Store, digest
from dualpace.build.toolchain import find_compiler
from dualpace.build.units import libraries
from dualpace.files import file_digest
from dualpace.plan.abi import layout_hash
from dualpace.plan.manifest import FORMAT, MANIFEST, File, Manifest, WeightFiles
from dualpace.plan.plan import Plan
from dualpace.render.sources import RenderError, render

SOURCES = "sources"


def build(plan: Plan, output: Path, store: Store, progress: Progress) -> Manifest:
    """Build the bundle of `plan` at `output`, which appears, or is replaced, by rename.

    Raises BuildError for what is planned but not served yet, for a missing compiler or package, for what does not
    compile or render, and for an `output` that is something else than a bundle.
    """
    _refuse_unserved(plan)
    if output.exists() and any(output.iterdir()) and not (output / MANIFEST).is_file():
        raise BuildError(f"{output} is not empty and not a bundle: name another folder with -o")
    progress.step("render")
    try:
        sources = render(plan)
    except RenderError as error:
        raise BuildError(str(error)) from error
    targets = libraries(plan, sources)
    # What is missing on this machine is said before anything takes time.
    headers = {name for library in targets for unit in library.units for name in unit.headers}
    toolchain: dict[str, str] = {tool: find_compiler(tool).version for tool in sorted({x.tool for x in targets})}
    toolchain |= {name: find_headers(name).version for name in sorted(headers)}
    model, weights = prepare_model(plan, store, progress)
    binaries = compile_libraries(targets, sources, store, progress)
    progress.step("assemble the bundle")
    output.parent.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(dir=output.parent, prefix=f".{output.name}."))
    try:
        folder.chmod(0o755)
        for path, text in sources.items():
            _place(folder / SOURCES / path).write_text(text, encoding="utf-8")
        for path, binary in binaries.items():
            shutil.copyfile(binary, _place(folder / path))
        shutil.copytree(model, folder / "model", copy_function=shutil.copyfile)
        files = {path.relative_to(folder).as_posix(): _file(path) for path in _files(folder)}
        manifest = Manifest(
            format=FORMAT,
            version=__version__,
            digest=_digest(plan, files, weights),
            layout=layout_hash(plan),
            plan=plan,
            files=files,
            weights=weights,
            toolchain=toolchain,
        )
        (folder / MANIFEST).write_text(manifest.model_dump_json(indent=1), encoding="utf-8")
        _appear(folder, output)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return manifest


def _refuse_unserved(plan: Plan) -> None:
    if plan.offload.mode == "cooperative" or (plan.offload.mode != "off" and plan.target.kind == "cuda"):
        raise BuildError(f"offload.mode {plan.offload.mode} is planned but not served yet: use off", "offload.mode")
    if plan.target.count > 1:
        raise BuildError(f"target.count {plan.target.count} is planned but not served yet: use 1", "target.count")
    if plan.target.kind == "cpu" and platform.machine() != "x86_64":
        raise BuildError(f"target.cpu needs an x86-64 machine, and this one is {platform.machine()}", "target.cpu")


def _place(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def _files(folder: Path) -> Iterator[Path]:
    return (path for path in sorted(folder.rglob("*")) if path.is_file())


def _file(path: Path) -> File:
    return File(size=path.stat().st_size, sha256=file_digest(path))


def _digest(plan: Plan, files: Mapping[str, File], weights: WeightFiles | None) -> str:
    """Over the bytes of bundle and weights and the plan, less where they lie: the same deployment has it anywhere."""
    outside = {
        "weights": {"path"},
        "serving": {"api_key_file", "chat_template", "tls_certificate", "tls_key"},
        "nic": {"tls_certificate", "tls_key", "key_file"},
    }
    contents = (files, weights.files if weights else {})
    hashes = (part for content in contents for name, file in sorted(content.items()) for part in (name, file.sha256))
    return digest([plan.model_dump_json(exclude=outside), *hashes])


def _appear(folder: Path, output: Path) -> None:
    """Rename `folder` to `output`; a bundle that is there steps aside first, whole, and comes back on failure."""
    old = folder.with_name(f"{folder.name}.old")
    with contextlib.suppress(FileNotFoundError):
        output.rename(old)
    try:
        folder.rename(output)
    except OSError as error:
        if old.exists() and not output.exists():
            old.rename(output)
        raise BuildError(f"{output} changed while it was built: build again") from error
    finally:
        shutil.rmtree(old, ignore_errors=True)
