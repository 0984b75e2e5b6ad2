"""Rows with KV in host memory on the CPU engine: the lane's executor, whose attention waits for blocks to come."""

import ctypes
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from dualpace.engine.executor import WAITS, Call, Executor
from dualpace.engine.kernels import Kernels
from dualpace.engine.scheduler import HostScheduler
from dualpace.plan.plan import Plan
from dualpace.plan.program import Op
from dualpace.plan.recall import recalled_layers
from dualpace.plan.structs import Lane, StepKind

_ENDED = object()


class SlowExecutor(Executor):
    """The executor of the slow lane: attention of layers whose KV may be in host memory is `attend`'s.

    That is given a layer's number among these, and addresses of queries, workspace and output; False: come back.
    """

    def __init__(self, *arguments: Any, attend: Callable[[int, int, int, int], bool], **options: Any) -> None:
        self._attend = attend
        super().__init__(*arguments, **options)

    def _attention(self, op: Op) -> Call:
        layers = recalled_layers(self._plan.model)
        if op.layer not in layers:
            return super()._attention(op)
        attend = self._attend
        operands = (
            layers.index(op.layer),
            self._address(op.inputs[0]),
            self._workspace.data_ptr(),
            self._address(op.outputs[0]),
        )
        return lambda: None if attend(*operands) else WAITS


class SlowLane:
    """The slow lane of an engine over a bundle's `library`, whose blocks are copied by threads."""

    def __init__(
        self,
        library: Path,
        plan: Plan,
        weights: Mapping[str, torch.Tensor],
        kernels: Kernels,
        scheduler: HostScheduler,
        pools: list[torch.Tensor],
    ) -> None:
        """`pools` are those of the fast lane's executor."""
        self._library, self._scheduler = _load(library), scheduler
        layers = recalled_layers(plan.model)
        addresses = (ctypes.c_void_p * len(layers))(*(pools[layer].data_ptr() for layer in layers))
        step = scheduler.step_addresses[Lane.SLOW]
        self._handle = ctypes.c_void_p(self._library.dp_slow_create(scheduler.recall_address, step, addresses))
        self._executor = SlowExecutor(
            plan,
            weights,
            kernels,
            step,
            lambda logits: scheduler.sample(logits, plan.model.vocab, Lane.SLOW),
            scheduler.beat,
            pools,
            attend=lambda *operands: bool(self._library.dp_slow_attend(self._handle, *operands)),
        )
        self._step: Iterator[None] | None = None

    def go_on(self) -> bool:
        """Run the lane's step, or begin its next, until it ends or has to wait; False unless it has ended."""
        if self._step is None:
            self._library.dp_slow_end_step(self._handle)
            step = self._scheduler.schedule(Lane.SLOW)
            self._library.dp_slow_begin_step(self._handle)
            if step.kind is StepKind.IDLE:
                return False
            self._step = self._executor.advance(step.tokens, step.samples)
        if next(self._step, _ENDED) is not _ENDED:
            return False
        self._step = None
        return True

    def close(self) -> None:
        """End the threads that copy."""
        self._library.dp_slow_destroy(self._handle)


def _load(path: Path) -> ctypes.CDLL:
    library = ctypes.CDLL(str(path))
    handle, number = ctypes.c_void_p, ctypes.c_int
    library.dp_slow_create.argtypes = (handle, handle, handle)
    library.dp_slow_create.restype = handle
    library.dp_slow_attend.argtypes = (handle, number, handle, handle, handle)
    for function in (library.dp_slow_begin_step, library.dp_slow_end_step, library.dp_slow_destroy):
        function.argtypes = (handle,)
        function.restype = None
    return library
