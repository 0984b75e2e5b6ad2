"""How many threads the engine may use: the cores of this process, within its container's quota."""

import os
from pathlib import Path

_QUOTA = Path("/sys/fs/cgroup/cpu.max")
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
    """Whole cores of the cgroup's quota; every core if it has none."""
    if not _QUOTA.is_file():
        return os.cpu_count() or 1
    quota, period = _QUOTA.read_text().split()
    return os.cpu_count() or 1 if quota == "max" else int(quota) // int(period)
