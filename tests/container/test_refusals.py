"""What a container lacks is said in one line, with an exit code of its kind, before the model is loaded."""

import shutil
from pathlib import Path

import pytest
from docker.types import Ulimit

from dualpace.build.context import in_image
from dualpace.exits import Exit
from dualpace.plan.manifest import MANIFEST, Manifest, read_manifest
from tests.container.conftest import Builder, Runner
from tests.launch.machines import bundle_of

pytestmark = pytest.mark.timeout(1800)

BUNDLE = "/opt/dualpace/bundle"


def refused(runner: Runner, code: Exit, mounts: dict[Path, str] | None = None, **options: object) -> str:
    """The one line that a container says which refuses with `code`."""
    volumes = {str(path): {"bind": target, "mode": "ro"} for path, target in (mounts or {}).items()}
    if mounts is not None:
        options["volumes"] = {str(runner.weights): {"bind": "/weights", "mode": "ro"}} | volumes
    ended, said = runner.ended(**options)
    assert ended == code, said
    (line,) = said.splitlines()
    assert line.startswith("dualpace: ")
    return line


def test_a_container_with_too_little_memory_is_refused(runner: Runner) -> None:
    line = refused(runner, Exit.HARDWARE, mem_limit="400m")
    assert " MiB of memory and 3" in line
    assert "(`--memory`)" in line


def test_too_little_shared_memory_is_refused(runner: Runner) -> None:
    assert "/dev/shm has 0 left: give the container `--shm-size=" in refused(runner, Exit.HARDWARE, shm_size="64k")


def test_locked_memory_that_a_nic_cannot_have_is_refused(runner: Runner, builder: Builder, tmp_path: Path) -> None:
    manifest = read_manifest(builder.bundle)
    rings = manifest.plan.rings.model_copy(update={"transport": "rdma"})
    bundle = bundle_of(manifest.plan.model_copy(update={"rings": rings}), tmp_path / "bundle")
    limit = Ulimit(name="memlock", soft=65536, hard=65536)
    said = refused(runner, Exit.HARDWARE, {bundle: BUNDLE}, ulimits=[limit])
    assert "of locked memory and 64 KiB are allowed: give the container `--ulimit memlock=-1`" in said


def test_weights_of_other_content_are_refused(runner: Runner, tmp_path: Path) -> None:
    changed = shutil.copytree(runner.weights, tmp_path / "weights") / "model.safetensors"
    with changed.open("r+b") as file:
        file.seek(-1, 2)
        last = file.read(1)
        file.seek(-1, 2)
        file.write(bytes([last[0] ^ 1]))
    said = refused(runner, Exit.WEIGHTS, volumes={str(changed.parent): {"bind": "/weights", "mode": "ro"}})
    assert said.startswith("dualpace: /weights/model.safetensors has other content than when the bundle was built")


def test_weights_that_are_not_mounted_are_refused(runner: Runner) -> None:
    said = refused(runner, Exit.WEIGHTS, volumes={})
    assert said.startswith("dualpace: /weights/model.safetensors is missing: mount the checkpoint")


def test_a_bundle_of_another_version_is_refused(runner: Runner, builder: Builder, tmp_path: Path) -> None:
    manifest: Manifest = in_image(read_manifest(builder.bundle))
    bundle = tmp_path / "bundle"
    bundle.mkdir()
    (bundle / MANIFEST).write_text(manifest.model_copy(update={"format": manifest.format + 1}).model_dump_json())
    assert "build the spec again" in refused(runner, Exit.USAGE, {bundle: BUNDLE})
