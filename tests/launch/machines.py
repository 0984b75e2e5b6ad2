"""Bundles, checkpoints and drivers that a machine may turn out to lack, without anything compiled or trained."""

import hashlib
import subprocess
from pathlib import Path

from dualpace.plan.manifest import FORMAT, MANIFEST, File, Manifest, WeightFiles
from dualpace.plan.plan import Plan

_MEMORY = str(140 << 30)
H200 = {"FAKE_COUNT": "1", "FAKE_DRIVER": "13000", "FAKE_SM": "90", "FAKE_MEMORY": _MEMORY, "FAKE_FREE": _MEMORY}
DRIVER = ("libcuda.so.1", "libnvidia-ml.so.1")


def fake_driver(folder: Path) -> Path:
    """The folder of a `DRIVER` that shows the GPU which the variables FAKE_* describe, see `H200`."""
    folder.mkdir(parents=True, exist_ok=True)
    source = Path(__file__).with_name("fake_cuda.cpp")
    for library in DRIVER:
        subprocess.run(["g++", "-shared", "-fPIC", "-o", folder / library, source], check=True)
    return folder


def bundle_of(plan: Plan, folder: Path, weights: WeightFiles | None = None) -> Path:
    """A bundle of `plan` with no file in it."""
    folder.mkdir(parents=True, exist_ok=True)
    manifest = Manifest(
        format=FORMAT, version="0", digest="", layout="", plan=plan, files={}, weights=weights, toolchain={}
    )
    (folder / MANIFEST).write_text(manifest.model_dump_json())
    return folder


def checkpoint(folder: Path, named: str | None = None) -> WeightFiles:
    """A checkpoint in `folder`, as a bundle records it; it says that the folder is `named`, if it is."""
    folder.mkdir(parents=True, exist_ok=True)
    data = b"weights"
    (folder / "model.safetensors").write_bytes(data)
    files = {"model.safetensors": File(size=len(data), sha256=hashlib.sha256(data).hexdigest())}
    return WeightFiles(folder=named or str(folder), files=files)
