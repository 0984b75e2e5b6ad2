"""A bundle and its checkpoint are compared with what they were when the bundle was built."""

import hashlib
from pathlib import Path

import pytest

from dualpace.plan.manifest import (
    FORMAT,
    HOST_ENGINE,
    MANIFEST,
    TOKENIZER,
    BundleError,
    File,
    Manifest,
    WeightFiles,
    check_weights,
    read_manifest,
)
from tests.plans import example


def file_of(data: bytes) -> File:
    return File(size=len(data), sha256=hashlib.sha256(data).hexdigest())


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    contents = {HOST_ENGINE: b"engine", TOKENIZER: b"tokens"}
    for name, data in contents.items():
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_bytes(data)
    manifest = Manifest(
        format=FORMAT,
        version="0",
        digest="",
        layout="",
        plan=example("quickstart"),
        files={name: file_of(data) for name, data in contents.items()},
        weights=None,
        toolchain={},
    )
    (tmp_path / MANIFEST).write_text(manifest.model_dump_json())
    return tmp_path


def test_a_whole_bundle_is_read(bundle):
    assert read_manifest(bundle).files[TOKENIZER].size == 6


@pytest.mark.parametrize("name", [HOST_ENGINE, TOKENIZER])
def test_a_missing_file_is_named(bundle, name):
    (bundle / name).unlink()
    with pytest.raises(BundleError, match=rf"{name} is missing: build the spec again"):
        read_manifest(bundle)


def test_a_file_of_another_size_is_named(bundle):
    (bundle / TOKENIZER).write_bytes(b"token")
    with pytest.raises(BundleError, match=rf"{TOKENIZER} has 5 bytes, 6 when it was built: build the spec again"):
        read_manifest(bundle)


def test_a_library_of_other_bytes_is_named(bundle):
    (bundle / HOST_ENGINE).write_bytes(b"eNgine")
    with pytest.raises(BundleError, match=rf"{HOST_ENGINE} is not the one that was built: build the spec again"):
        read_manifest(bundle)


@pytest.fixture
def weights(tmp_path: Path) -> WeightFiles:
    for name in ("a.safetensors", "b.safetensors"):
        (tmp_path / name).write_bytes(b"weights")
    files = {name: file_of(b"weights") for name in ("a.safetensors", "b.safetensors")}
    return WeightFiles(folder=str(tmp_path), files=files)


def test_the_checkpoint_of_the_build_is_accepted_wherever_it_lies_now(weights):
    check_weights(weights)


def test_a_checkpoint_that_was_not_there_at_build_is_refused_although_it_is_there_now(weights):
    with pytest.raises(BundleError, match=r"was not there when the bundle was built.*build the spec again"):
        check_weights(weights.model_copy(update={"files": {}}))


def test_another_checkpoint_is_refused_by_the_file_that_differs(weights):
    folder = Path(weights.folder)
    (folder / "b.safetensors").write_bytes(b"other weights")
    with pytest.raises(BundleError, match=r"b\.safetensors has 13 bytes, 7 when it was built: mount the checkpoint"):
        check_weights(weights)
    (folder / "b.safetensors").unlink()
    with pytest.raises(BundleError, match=r"b\.safetensors is missing: mount the checkpoint"):
        check_weights(weights)
    (folder / "b.safetensors").write_bytes(b"weights")
    (folder / "c.safetensors").write_bytes(b"weights")
    with pytest.raises(BundleError, match=r"c\.safetensors was not there when the bundle was built"):
        check_weights(weights)
