"""How many threads the engine may use: the cores of this process, within its container's quota."""

import os
from pathlib import Path

_CGROUP = Path("/sys/fs/cgroup")
_CPUS = Path("/sys/devices/system/cpu")


def default_threads() -> int:
    """One a physical core that this process may run on, within the cgroup's quota: decode is bound by memory."""
    cores = {_siblings(cpu) for cpu in os.sched_getaffinity(0)}
    return max(min(len(cores), _quota()), 1)


def _siblings(cpu: int) -> str:
    """What the hardware threads of one core have in common."""
    path = _CPUS / f"cpu{cpu}" / "topology" / "thread_siblings_list"
    return path.read_text() if path.is_file() else str(cpu)


def _quota() -> int:
    """Cores of the cgroup's quota, a part of one counting as one; every core if it has none."""
    quota, period = _limit()
    return -(-int(quota) // int(period)) if quota not in ("max", "-1") else os.cpu_count() or 1


def _limit() -> tuple[str, str]:
    """Microseconds of CPU time in each period of so many, as the kernel writes them: cgroup v2, else v1, else none."""
    unified, folder = _CGROUP / "cpu.max", _CGROUP / "cpu"
    if unified.is_file():
        quota, period = unified.read_text().split()
        return quota, period
    if (folder / "cpu.cfs_quota_us").is_file():
        quota, period = ((folder / f"cpu.cfs_{name}_us").read_text().strip() for name in ("quota", "period"))
        return quota, period
    return "max", ""
