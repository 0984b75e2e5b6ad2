"""CPU workers: threads that attend to KV where it lies in host memory, for a device that says what they are to do."""

import ctypes
import mmap
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType

from dualpace.engine.scheduler import check_layout
from dualpace.plan.plan import Plan


class Workers:
    """The threads of one engine, one on each of `cpus`. `size` bytes at `address` are shared with the device."""

    def __init__(
        self, library: Path, plan: Plan, pool: int, cpus: Sequence[int], note: Callable[[str], object] = print
    ) -> None:
        """Start them. The host pool at address `pool` outlives them; `note` is told where they are.

        Raises LayoutError for a library of another plan, ValueError for more workers than there is room for.
        """
        self._library = ctypes.CDLL(str(library))
        self._library.dp_workers_layout.restype = ctypes.c_uint64
        self._library.dp_cooperation_bytes.restype = ctypes.c_int64
        self._library.dp_workers_start.restype = ctypes.c_void_p
        check_layout(library, self._library.dp_workers_layout(), plan)
        most = int(self._library.dp_most_workers())
        if len(cpus) > most:
            raise ValueError(f"{len(cpus)} CPU workers, {most} are the most")
        self.size = int(self._library.dp_cooperation_bytes())
        self._map = mmap.mmap(-1, self.size)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self._map))
        places = (ctypes.c_int32 * len(cpus))(*cpus)
        self._handle = ctypes.c_void_p(
            self._library.dp_workers_start(ctypes.c_void_p(self.address), ctypes.c_void_p(pool), places, len(cpus))
        )
        loose = len(cpus) - self._library.dp_workers_pinned(self._handle)
        held = f"; {loose} could not be pinned" if loose else ", pinned"
        note(f"CPU workers on {', '.join(map(str, cpus))}{held}")

    def stop(self) -> None:
        """End them within the time that a split takes; items that they have are not answered."""
        if self._handle:
            self._library.dp_workers_stop(self._handle)
            self._handle = ctypes.c_void_p()

    def __enter__(self) -> "Workers":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
