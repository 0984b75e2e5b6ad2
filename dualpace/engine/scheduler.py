"""The scheduler and sampler of a bundle's host library, for the engines that a host drives."""

import ctypes
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dualpace.engine.memory import RingMemory
from dualpace.plan import abi
from dualpace.plan.plan import Plan
from dualpace.plan.structs import Lane, StepKind


class LayoutError(Exception):
    """A library built for another plan or version."""


class Step(NamedTuple):
    """What a step holds; an IDLE one has nothing to run. Of its samples the first `scored` have their token."""

    step: int
    kind: StepKind
    rows: int
    tokens: int
    samples: int
    scored: int


class HostScheduler:
    """One engine's scheduler over `memory`. Not for use from two threads at a time.

    A lane's step is: `schedule()`, then unless it is IDLE the forward pass over its StepBuffers and `sample(logits)`.
    The lane's next `schedule()` takes what was sampled; steps of the other lane may come between. The StepBuffers of
    each lane lie at its one of `step_addresses`, those of the fast lane at `step_address`; `buffers` maps each of
    their arrays to a view that `schedule` fills.
    """

    def __init__(
        self, library: Path, memory: RingMemory, plan: Plan, *, vocabulary: int | None = None, threads: int = 1
    ) -> None:
        """`vocabulary`: ids from it on are padding and never sampled. `threads` sample. Raises LayoutError."""
        self._library = _load(library)
        check_layout(library, self._library.dp_engine_layout(), plan)
        self._memory = memory
        self._handle = self._library.dp_engine_create(memory.address, vocabulary or plan.model.vocab, threads)
        lanes = Lane if plan.schedule.slow_rows else (Lane.FAST,)
        self.step_addresses = [int(self._library.dp_engine_step_buffers(self._handle, lane)) for lane in lanes]
        self.step_address = self.step_addresses[Lane.FAST]
        self._steps: list[Any] = [abi.view("StepBuffers", plan).from_address(at) for at in self.step_addresses]
        fast = self._steps[Lane.FAST]
        arrays = ((name, getattr(fast, name)) for name, kind, *_ in fast._fields_)
        self.buffers: dict[str, NDArray[Any]] = {
            name: np.ctypeslib.as_array(array)
            for name, array in arrays
            if isinstance(array, ctypes.Array) and not name.startswith("pad_")
        }

    @property
    def recall_address(self) -> int:
        """The state of rows with KV in host memory; 0 without."""
        return int(self._library.dp_engine_recall(self._handle) or 0)

    def schedule(self, lane: Lane = Lane.FAST) -> Step:
        """Take what the lane's last step sampled, read the rings and lay out its next step."""
        self._library.dp_engine_schedule(self._handle, lane)
        s = self._steps[lane]
        return Step(s.step, StepKind(s.kind), s.rows, s.tokens, s.samples, s.scored)

    def sample(self, logits: int, stride: int, lane: Lane = Lane.FAST) -> None:
        """Sample the step's rows from fp32 logits [samples, vocab] at that address, a row every `stride` elements."""
        self._library.dp_engine_sample(self._handle, lane, logits, stride)

    def beat(self) -> None:
        """Move the heartbeat: a long step is not a stuck one."""
        self._library.dp_engine_beat(self._handle)

    def wait(self, timeout_s: float) -> bool:
        """While all lanes rest: block without the GIL until one may have something to do; False on time-out."""
        return bool(self._library.dp_engine_wait(self._handle, int(timeout_s * 1e6)))

    def announce(self, *, ready: bool = False, stopped: bool = False) -> None:
        """Tell frontends what `status()` shows them; stopping ends what is running for them."""
        self._library.dp_engine_announce(self._handle, ready, stopped)

    def close(self) -> None:
        """Free the scheduler's state; `buffers` are gone with it."""
        if self._handle:
            self.buffers = {}
            self._library.dp_engine_destroy(self._handle)
            self._handle = None

    def __enter__(self) -> "HostScheduler":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def check_layout(library: Path, layout: int, plan: Plan) -> None:
    """Raises LayoutError unless `layout`, which `library` says of itself, is that of the plan."""
    found, wanted = f"{layout:016x}", abi.layout_hash(plan)
    if found != wanted:
        raise LayoutError(f"{library}: layout {found}, the plan's is {wanted}; build it again")


def _load(path: Path) -> ctypes.CDLL:
    library = ctypes.CDLL(str(path))
    handle = ctypes.c_void_p
    library.dp_engine_layout.argtypes = ()
    library.dp_engine_layout.restype = ctypes.c_uint64
    library.dp_engine_create.argtypes = (handle, ctypes.c_uint32, ctypes.c_uint32)
    library.dp_engine_create.restype = handle
    library.dp_engine_step_buffers.argtypes = (handle, ctypes.c_int)
    library.dp_engine_step_buffers.restype = handle
    library.dp_engine_recall.argtypes = (handle,)
    library.dp_engine_recall.restype = handle
    library.dp_engine_schedule.argtypes = (handle, ctypes.c_int)
    library.dp_engine_schedule.restype = None
    library.dp_engine_sample.argtypes = (handle, ctypes.c_int, handle, ctypes.c_int64)
    library.dp_engine_sample.restype = None
    library.dp_engine_beat.argtypes = (handle,)
    library.dp_engine_beat.restype = None
    library.dp_engine_wait.argtypes = (handle, ctypes.c_int64)
    library.dp_engine_wait.restype = ctypes.c_int
    library.dp_engine_announce.argtypes = (handle, ctypes.c_int, ctypes.c_int)
    library.dp_engine_announce.restype = None
    library.dp_engine_destroy.argtypes = (handle,)
    library.dp_engine_destroy.restype = None
    return library
