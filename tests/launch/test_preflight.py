"""What a machine lacks is said in one line, with the exit code that tells whose fault it is, before anything loads."""

import os
import resource
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from dualpace import preflight
from dualpace.exits import Exit
from dualpace.plan.plan import Plan
from tests.launch.machines import H200, bundle_of, checkpoint, fake_driver
from tests.plans import example

GPU_PLAN = example("llama-3.1-8b-h200")
CPU_PLAN = example("quickstart")


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fake_driver(tmp_path_factory.mktemp("driver"))


def serve(bundle: Path, *options: str, environment: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-X", "importtime", "-m", "dualpace.cli", "serve", str(bundle), *options]
    environment = os.environ | (environment or {})
    ended = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    imported, said = [], []
    for line in ended.stderr.splitlines():
        (imported if line.startswith("import time:") else said).append(line)
    assert not [line for line in imported if line.endswith(("| torch", "| tokenizers"))], "loaded before it refused"
    ended.stderr = "\n".join(said)
    return ended


def on(driver: Path, **changes: str) -> dict[str, str]:
    return {"LD_LIBRARY_PATH": str(driver)} | H200 | changes


def test_a_gpu_of_another_architecture_is_named(driver, tmp_path):
    ended = serve(bundle_of(GPU_PLAN, tmp_path), environment=on(driver, FAKE_SM="80"))
    assert ended.returncode == Exit.HARDWARE
    assert ended.stderr == (
        f"dualpace: {tmp_path} is compiled for sm_90a (h200) and NVIDIA H100 is sm_80: "
        "build the spec with the `target.gpu` of this machine"
    )


def test_a_driver_that_is_too_old_is_named(driver, tmp_path):
    ended = serve(bundle_of(GPU_PLAN, tmp_path), environment=on(driver, FAKE_DRIVER="12080"))
    assert ended.returncode == Exit.HARDWARE
    assert ended.stderr == (
        f"dualpace: the NVIDIA driver speaks CUDA 12.8, {tmp_path} needs 13.0: install a newer driver"
    )


def test_a_gpu_with_too_little_memory_is_named(driver, tmp_path):
    ended = serve(bundle_of(GPU_PLAN, tmp_path), environment=on(driver, FAKE_MEMORY=str(80 << 30)))
    assert ended.returncode == Exit.HARDWARE
    assert "MiB of GPU memory and NVIDIA H100 has 81920: build the spec with" in ended.stderr
    assert ended.stderr.count("\n") == 0


def test_a_gpu_whose_memory_others_have_taken_is_named(driver, tmp_path):
    ended = serve(bundle_of(GPU_PLAN, tmp_path), environment=on(driver, FAKE_FREE=str(30 << 30)))
    assert ended.returncode == Exit.HARDWARE
    assert "MiB of GPU memory and 30720 of 143360 MiB are free: end what else uses the GPU" in ended.stderr
    assert ended.stderr.count("\n") == 0


def test_a_driver_that_does_not_tell_what_is_left_is_believed(driver, tmp_path):
    (tmp_path / "alone").mkdir()
    (tmp_path / "alone" / "libcuda.so.1").symlink_to(driver / "libcuda.so.1")
    bundle = bundle_of(GPU_PLAN, tmp_path / "bundle", checkpoint(tmp_path / "weights", "/nowhere"))
    ended = serve(bundle, environment=on(tmp_path / "alone", FAKE_FREE="0"))
    assert ended.returncode == Exit.WEIGHTS


def test_a_driver_without_a_gpu_is_told_from_one(driver, tmp_path):
    ended = serve(bundle_of(GPU_PLAN, tmp_path), environment=on(driver, FAKE_COUNT="0"))
    assert ended.returncode == Exit.HARDWARE
    assert f"{tmp_path} is built for h200 and this machine shows no NVIDIA GPU" in ended.stderr


def test_a_nic_that_may_lock_too_little_memory_is_told_the_limit(tmp_path, monkeypatch):
    rings = CPU_PLAN.rings.model_copy(update={"transport": "rdma"})
    monkeypatch.setattr(preflight, "_may_lock", lambda: False)
    monkeypatch.setattr(resource, "getrlimit", lambda name: (65536, 65536))
    with pytest.raises(preflight.RefusedError, match=r"memory and 64 KiB are allowed: .*`--ulimit memlock=-1`"):
        preflight.check(tmp_path, _manifest(CPU_PLAN.model_copy(update={"rings": rings})), hashes=False)


def test_shared_memory_that_cannot_hold_the_rings_is_told_how_much_they_need(tmp_path, monkeypatch):
    rings = CPU_PLAN.rings.model_copy(update={"bytes": 1 << 50})
    monkeypatch.setattr(preflight, "SHARED_MEMORY", tmp_path)
    with pytest.raises(preflight.RefusedError, match=r"need 1073741824 MiB of shared memory .*`--shm-size=") as refused:
        preflight.check(tmp_path, _manifest(CPU_PLAN.model_copy(update={"rings": rings})), hashes=False)
    assert refused.value.code == Exit.HARDWARE


@pytest.mark.parametrize(("host_budget", "field"), [(0, "target.kv_budget"), (64 << 30, "offload.host_budget")])
def test_memory_that_cannot_hold_the_plan_is_told_how_much_it_needs(host_budget, field, tmp_path, monkeypatch):
    plan = CPU_PLAN.model_copy(update={"offload": CPU_PLAN.offload.model_copy(update={"host_budget": host_budget})})
    needed = (preflight.host_memory(CPU_PLAN) + host_budget) >> 20
    monkeypatch.setattr(preflight, "available_memory", lambda: 100 << 20)
    refusal = rf"needs {needed} MiB of memory and 100 MiB are left here: .*`--memory`\), or lower `{field}`"
    with pytest.raises(preflight.RefusedError, match=refusal) as refused:
        preflight.check(tmp_path, _manifest(plan), hashes=False)
    assert refused.value.code == Exit.HARDWARE


def _manifest(plan: Plan) -> SimpleNamespace:
    return SimpleNamespace(plan=plan, weights=None)


def test_a_checkpoint_of_other_bytes_is_refused_where_its_hashes_are_compared(tmp_path):
    bundle = bundle_of(CPU_PLAN, tmp_path / "bundle", checkpoint(tmp_path / "weights"))
    (tmp_path / "weights" / "model.safetensors").write_bytes(b"heights")
    ended = serve(bundle, "--verify-weights")
    assert ended.returncode == Exit.WEIGHTS
    assert f"{tmp_path}/weights/model.safetensors has other content than when the bundle was built" in ended.stderr
    assert ended.stderr.count("\n") == 0


def test_a_checkpoint_that_is_missing_is_refused(tmp_path):
    bundle = bundle_of(CPU_PLAN, tmp_path / "bundle", checkpoint(tmp_path / "weights"))
    (tmp_path / "weights" / "model.safetensors").unlink()
    ended = serve(bundle)
    assert ended.returncode == Exit.WEIGHTS
    assert ended.stderr == (
        f"dualpace: {tmp_path}/weights/model.safetensors is missing: "
        "mount the checkpoint that the bundle was built with, or build the spec again"
    )


@pytest.mark.parametrize(("files", "left"), [
    ({"proc/meminfo": "MemTotal: 9 kB\nMemAvailable: 4096 kB\n"}, 4 << 20),
    ({"proc/meminfo": "MemAvailable: 4096 kB\n", "sys/fs/cgroup/memory.max": "max\n"}, 4 << 20),
    ({"proc/meminfo": "MemAvailable: 4096 kB\n", "sys/fs/cgroup/memory.max": "3000000\n",
      "sys/fs/cgroup/memory.current": "2000000\n", "sys/fs/cgroup/memory.stat": "anon 1\ninactive_file 500000\n"},
     1500000),
    ({"proc/meminfo": "MemAvailable: 4096 kB\n", "sys/fs/cgroup/memory/memory.limit_in_bytes": "3000000\n",
      "sys/fs/cgroup/memory/memory.usage_in_bytes": "2000000\n",
      "sys/fs/cgroup/memory/memory.stat": "cache 1\ntotal_inactive_file 200000\n"}, 1200000),
])  # fmt: skip
def test_memory_is_what_the_machine_and_the_cgroup_leave(files, left, tmp_path):
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert preflight.available_memory(tmp_path) == left
