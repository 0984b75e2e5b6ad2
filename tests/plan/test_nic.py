"""Plans whose frontends are on other hosts, and what these have of the bundle."""

import pytest

from dualpace.build.units import libraries
from dualpace.files import file_digest
from dualpace.plan.abi import layout_hash
from dualpace.plan.error import PlanError
from dualpace.plan.manifest import (
    AARCH64_RING,
    FORMAT,
    HOST_ENGINE,
    HOST_RING,
    BundleError,
    File,
    Manifest,
    frontend_files,
    read_manifest,
    ring_library,
)
from dualpace.plan.nic_key import read_key
from dualpace.plan.report import text_report
from dualpace.render.sources import render
from tests.plans import example

GATE = {"tls": {"certificate": "gate.crt", "key": "gate.key"}, "key_file": "frontend.key"}
NIC = {"transport": "rdma", "device": "mlx5_0", "gate": GATE}


def with_nic(**changes):
    return example("quickstart", nic=NIC | changes)


def test_paths_are_relative_to_the_spec_and_the_rest_has_defaults():
    nic = with_nic().nic
    assert (nic.device, nic.port, nic.gid_index, nic.gate_host, nic.gate_port) == ("mlx5_0", 1, 3, "0.0.0.0", 7471)
    assert nic.key_file == "/nowhere/specs/frontend.key"
    assert example("quickstart").nic is None


def test_the_report_says_where_frontends_come_in():
    assert "0.0.0.0:7471, mlx5_0 at pinned host memory" in text_report(with_nic())
    on_gpu = text_report(example("qwen2.5-7b-a100", nic=NIC))
    assert "mlx5_0 at GPU memory, or pinned host memory where NIC or GPU cannot" in on_gpu
    kept = text_report(example("qwen2.5-7b-a100", nic=NIC | {"memory": "host"}))
    assert "mlx5_0 at pinned host memory" in kept


@pytest.mark.parametrize(("missing", "words"), [("device", "rdma needs a device"), ("gate", "rdma needs a gate")])
def test_what_rdma_needs_is_asked_for(missing, words):
    with pytest.raises(PlanError, match=words):
        example("quickstart", nic={name: value for name, value in NIC.items() if name != missing})


def test_how_frontends_come_in_is_compiled_into_nothing():
    assert layout_hash(example("quickstart")) == layout_hash(with_nic()) == layout_hash(with_nic(device="mlx5_1"))


def test_the_ring_library_is_built_for_a_smartnics_cores_too():
    def outputs(plan):
        return {library.output: library.tool for library in libraries(plan, render(plan))}

    assert outputs(with_nic())[AARCH64_RING] == "aarch64-linux-gnu-g++"
    assert AARCH64_RING not in outputs(example("quickstart"))


def bundle(folder, *names):
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name)
    plan = with_nic()
    files = {name: File(size=len(name), sha256=file_digest(folder / name)) for name in names}
    return Manifest(
        format=FORMAT, version="0", digest="d" * 64, layout=layout_hash(plan), plan=plan, files=files, weights=None,
        toolchain={},
    )  # fmt: skip


def test_what_a_frontend_gets_is_a_bundle_of_the_same_digest(tmp_path):
    manifest = bundle(tmp_path / "whole", HOST_ENGINE, HOST_RING, AARCH64_RING, "model/tokenizer.json")
    library = ring_library(manifest, "x86_64", "aarch64")
    for name, content in frontend_files(tmp_path / "whole", manifest, library).items():
        (tmp_path / "part" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "part" / name).write_bytes(content)
    part = read_manifest(tmp_path / "part")
    assert (part.digest, part.plan) == (manifest.digest, manifest.plan)
    assert sorted(part.files) == [HOST_RING, "model/tokenizer.json"]
    assert (tmp_path / "part" / HOST_RING).read_text() == AARCH64_RING


def test_a_machine_without_a_library_gets_none(tmp_path):
    manifest = bundle(tmp_path, HOST_RING)
    assert ring_library(manifest, "x86_64", "x86_64") == HOST_RING
    assert ring_library(manifest, "x86_64", "aarch64") is None
    assert ring_library(manifest, "x86_64", "riscv64") is None


@pytest.mark.parametrize("text", ["", "short\n", "two words that are long enough\n", "ä" * 20])
def test_what_is_no_key_is_refused_without_being_shown(tmp_path, text):
    (tmp_path / "key").write_text(text)
    with pytest.raises(BundleError, match=r"this is no key, .*`openssl rand -hex 32` makes one") as refused:
        read_key(str(tmp_path / "key"))
    assert not text.strip() or text.strip() not in str(refused.value)


def test_a_key_is_a_line(tmp_path):
    (tmp_path / "key").write_text("0123456789abcdef\n")
    assert read_key(str(tmp_path / "key")) == b"0123456789abcdef"
    with pytest.raises(BundleError, match="No such file"):
        read_key(str(tmp_path / "absent"))
