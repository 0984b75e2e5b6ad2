"""How many threads the engine may use, and where: the cores of this process, within its container's quota."""

import os
from collections import defaultdict
from itertools import chain, zip_longest
from pathlib import Path

_CGROUP = Path("/sys/fs/cgroup")
_CPUS = Path("/sys/devices/system/cpu")


def default_threads() -> int:
    """One a physical core that this process may run on, within the cgroup's quota: decode is bound by memory."""
    return len(worker_cpus())


def worker_cpus(most: int | None = None) -> tuple[int, ...]:
    """A hardware thread of each such core, `most` at most, of every NUMA node in turn: all of memory is read alike."""
    first: dict[str, int] = {}
    for cpu in sorted(os.sched_getaffinity(0)):
        first.setdefault(_siblings(cpu), cpu)
    nodes = defaultdict(list)
    for cpu in first.values():
        nodes[_node(cpu)].append(cpu)
    in_turn = chain.from_iterable(zip_longest(*(nodes[node] for node in sorted(nodes))))
    cpus = [cpu for cpu in in_turn if cpu is not None]
    return tuple(cpus[: max(min(_quota(), len(cpus) if most is None else most), 1)])


def numa_nodes() -> tuple[int, ...]:
    """The nodes with cores of this process."""
    return tuple(sorted({_node(cpu) for cpu in os.sched_getaffinity(0)}))


def _node(cpu: int) -> int:
    """The NUMA node of a hardware thread; 0 where the kernel does not say."""
    return min((int(link.name.removeprefix("node")) for link in (_CPUS / f"cpu{cpu}").glob("node[0-9]*")), default=0)


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
