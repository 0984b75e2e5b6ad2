"""Memory for KV on the host: in huge pages and from every NUMA node, where the kernel has them."""

import ctypes
import mmap
import re
from collections.abc import Callable, Sequence
from pathlib import Path

from dualpace.plan.quantity import size_text

_SMAPS = Path("/proc/self/smaps")
_SYS_MBIND = 237  # on x86-64, which host kernels are compiled for
_INTERLEAVE = 3


def map_pool(size: int, nodes: Sequence[int] = (0,), note: Callable[[str], object] = print) -> mmap.mmap:
    """`size` zeroed bytes, all of them there. `note` is told how they lie. Raises OSError where there is no room."""
    # Shared memory, which is the default, has huge pages only where the whole system was told so.
    pool = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    pool.madvise(mmap.MADV_HUGEPAGE)
    address = ctypes.addressof(ctypes.c_char.from_buffer(pool))
    spread = len(nodes) > 1 and _interleave(address, size, nodes)
    ctypes.memset(address, 0, size)
    huge = _huge_bytes(address)
    where = f", from {len(nodes)} NUMA nodes in turn" if spread else ", not spread over NUMA nodes" * (len(nodes) > 1)
    note(f"host pool of {size_text(size)}, {huge / size:.0%} in huge pages{where}")
    return pool


def _interleave(address: int, size: int, nodes: Sequence[int]) -> bool:
    """Whether the kernel takes the mapping's pages from the nodes in turn."""
    mask = ctypes.c_uint64(sum(1 << node for node in nodes))
    system = ctypes.CDLL(None).syscall
    arguments = (address, size, _INTERLEAVE, ctypes.addressof(mask), 64, 0)
    return int(system(ctypes.c_long(_SYS_MBIND), *map(ctypes.c_ulong, arguments))) == 0


def _huge_bytes(address: int) -> int:
    """Of the mapping at `address`; 0 where the kernel does not say."""
    if not _SMAPS.is_file():
        return 0
    entry = re.search(rf"^{address:08x}-.*?AnonHugePages: +(\d+) kB", _SMAPS.read_text(), re.MULTILINE | re.DOTALL)
    return int(entry[1]) * 1024 if entry else 0
