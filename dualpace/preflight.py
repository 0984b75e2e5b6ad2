"""What is asked of a machine before anything of a bundle is loaded there: a refusal is one line, and its exit code."""

import os
import resource
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NoReturn

from dualpace import gpu
from dualpace.exits import Exit
from dualpace.files import file_digest
from dualpace.plan.manifest import Manifest, WeightFiles, WeightsError, check_weights
from dualpace.plan.plan import Plan
from dualpace.run_folder import SHARED_MEMORY

# What engine and frontend take beside the plan's memory: Python, torch's libraries.
_PROGRAMS = 400 << 20
_IPC_LOCK = 1 << 14  # CAP_IPC_LOCK, which lifts the limit of locked memory


class RefusedError(Exception):
    """A bundle that cannot be served here; `code` says whether that is the machine's fault or the checkpoint's."""

    def __init__(self, code: Exit, message: str) -> None:
        super().__init__(message)
        self.code = code


def check(bundle: Path, manifest: Manifest, *, hashes: bool) -> None:
    """Raise RefusedError for what `bundle` finds missing here; with `hashes`, the checkpoint is read and compared."""
    plan = manifest.plan
    _check_shared_memory(plan)
    _check_locked_memory(plan)
    if plan.target.kind == "cuda":
        needed = plan.memory.limit - plan.memory.free
        if complaint := gpu.refusal(str(bundle), plan.target.name, plan.target.sm, needed):
            _refuse(complaint)
    if host_memory(plan) > (have := available_memory()):
        field = "offload.host_budget" if plan.offload.host_budget else "target.kv_budget"
        _refuse(
            f"{bundle} needs {host_memory(plan) >> 20} MiB of memory and {have >> 20} MiB are left here: "
            f"give its container more (`--memory`), or lower `{field}`"
        )
    if manifest.weights is not None:
        _check_weights(manifest.weights, hashes=hashes)


def _refuse(message: str) -> NoReturn:
    raise RefusedError(Exit.HARDWARE, message)


def _check_shared_memory(plan: Plan) -> None:
    if not SHARED_MEMORY.is_dir():
        return
    volume = os.statvfs(SHARED_MEMORY)
    have = volume.f_bavail * volume.f_frsize
    if plan.rings.bytes > have:
        _refuse(
            f"the rings need {plan.rings.bytes >> 20} MiB of shared memory and {SHARED_MEMORY} has {have >> 20} left: "
            f"give the container `--shm-size={(plan.rings.bytes >> 20) + 16}m`, or lower nic.rings or nic.slots"
        )


def _check_locked_memory(plan: Plan) -> None:
    """What a NIC writes into has to be locked; for the GPU, its driver pins memory under no such limit."""
    if plan.rings.transport != "rdma":
        return
    limit, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    if limit != resource.RLIM_INFINITY and plan.rings.bytes > limit and not _may_lock():
        _refuse(
            f"the NIC needs {plan.rings.bytes >> 20} MiB of locked memory and {limit >> 10} KiB are allowed: "
            "give the container `--ulimit memlock=-1`"
        )


def _may_lock() -> bool:
    status = Path("/proc/self/status").read_text(encoding="ascii", errors="replace")
    return any(int(line.split()[1], 16) & _IPC_LOCK for line in status.splitlines() if line.startswith("CapEff:"))


def _check_weights(weights: WeightFiles, *, hashes: bool) -> None:
    try:
        check_weights(weights)
    except WeightsError as error:
        raise RefusedError(Exit.WEIGHTS, str(error)) from error
    if not hashes:
        return
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        names = list(weights.files)
        digests = pool.map(lambda name: file_digest(Path(weights.folder, name)), names)
        for name, digest in zip(names, digests, strict=True):
            expected = weights.files[name].sha256
            if digest != expected:
                raise RefusedError(
                    Exit.WEIGHTS,
                    f"{Path(weights.folder, name)} has other content than when the bundle was built, SHA-256 "
                    f"{digest[:12]}... for {expected[:12]}...: mount that checkpoint, or build the spec again",
                )


def host_memory(plan: Plan) -> int:
    """Bytes of host memory that a deployment of `plan` takes, at the least; what the GPU's driver pins counts too."""
    staged = 0 if plan.target.kind == "cuda" else plan.memory.limit - plan.memory.free
    return staged + plan.offload.host_budget + plan.rings.bytes + _PROGRAMS


def available_memory(root: Path = Path("/")) -> int:
    """Bytes that this process may still take: of the machine, within its container's limit."""
    fields = (line.split() for line in (root / "proc/meminfo").read_text().splitlines())
    free = next(int(size) for name, size, *_ in fields if name == "MemAvailable:") << 10
    return min([free, *_left_in_cgroup(root / "sys/fs/cgroup")])


def _left_in_cgroup(folder: Path) -> list[int]:
    """Bytes left under the cgroup's limit, the page cache counting as free: cgroup v2, else v1, else none."""
    unified = (folder, "memory.max", "memory.current", "inactive_file")
    split = (folder / "memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
    for place, limit, usage, cache in (unified, split):
        if (place / limit).is_file():
            most = (place / limit).read_text().strip()
            if most == "max":
                return []
            statistics = dict(line.split() for line in (place / "memory.stat").read_text().splitlines())
            return [int(most) - int((place / usage).read_text()) + int(statistics[cache])]
    return []
