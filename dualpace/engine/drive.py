"""The GPU engine at work: everything is allocated and captured once, then the device launches its own steps.

On the way of a token there is no host: the scheduler is the last node of each step program and launches the next one.
`host` drives the same programs step by step from here, for profilers and sanitizers, and `operations` launches each
program's operations one by one, for tools that cannot follow graphs.
"""

import ctypes
from collections.abc import Mapping
from functools import partial
from typing import Any, Literal

import torch

from dualpace.engine.capture import DeviceExecutor, captured
from dualpace.engine.device import Cubin, DeviceGraph, ended
from dualpace.plan import abi
from dualpace.plan.plan import Plan, Program
from dualpace.plan.structs import StepKind

Driver = Literal["device", "host", "operations"]
# The words that say what a step is; arrays begin on the next line.
_HEADER_BYTES = 64


class DriveError(Exception):
    """A device that has stopped by itself."""


class GpuEngine:
    """Scheduler, step programs and their memory on the current GPU.

    `rings` is the ring memory as the device sees it. `start` and `stop` enclose the engine's life; it serves in between
    whatever this process does, unless the host drives it: then `advance` makes a step.
    """

    def __init__(
        self,
        plan: Plan,
        weights: Mapping[str, torch.Tensor],
        cubin: Cubin,
        rings: ctypes.c_void_p,
        vocabulary: int,
        driver: Driver,
    ) -> None:
        """Allocate and capture; ids from `vocabulary` on are padding. Raises DeviceError."""
        self._plan, self._cubin, self._rings, self._driver = plan, cubin, rings, driver
        samples = max(program.samples for program in plan.schedule.programs)
        self._state = _zeros(cubin.constant("dp_state_bytes"))
        self._step_layout: Any = abi.view("StepBuffers", plan)
        self._step = _zeros(ctypes.sizeof(self._step_layout))
        self._layout: Any = abi.view("Drive", plan)
        self._drive = _zeros(ctypes.sizeof(self._layout))
        self._scratch = torch.empty(samples, plan.model.vocab, device="cuda")
        self._stream, self._control = torch.cuda.Stream(), torch.cuda.Stream()  # type: ignore[no-untyped-call]
        self.executor = DeviceExecutor(plan, weights, cubin, self._step, self._sample)
        cubin.launch("dp_start", (1,), self._state, self._step, vocabulary)
        torch.cuda.synchronize()
        for program in plan.schedule.programs:
            # Once outside of a capture, over an empty step: libraries choose and load their kernels at the first call.
            self.executor.launch(program)
            torch.cuda.synchronize()
        captures = plan.schedule.programs if driver != "operations" else ()
        self._graphs = [DeviceGraph(captured(partial(self._launch_step, program))) for program in captures]
        self._first = DeviceGraph(captured(self._launch_drive)) if driver == "device" else None

    def start(self) -> None:
        """Serve."""
        self._announce(ready=1, stopped=0)
        if self._first is None:
            return
        handles = torch.tensor([graph.handle for graph in self._graphs], dtype=torch.int64)
        self._drive[: handles.nbytes].view(torch.int64).copy_(handles)
        torch.cuda.synchronize()
        self._launch_first()

    def running(self) -> bool:
        """Whether the device still launches steps. Raises DeviceError for a kernel that failed."""
        return not ended(self._stream)

    def parked(self) -> bool:
        """Whether a device that launches no steps waits for `resume`."""
        return bool(self._word("parked").item())

    def resume(self) -> None:
        """Serve again, after a device has parked."""
        self._word("parked").zero_()
        torch.cuda.synchronize()
        self._launch_first()

    def advance(self) -> StepKind:
        """Schedule a step and run it, driven from here; an IDLE one has nothing to run."""
        with torch.cuda.stream(self._stream):
            self._cubin.launch("dp_schedule", (1,), self._state, self._step, self._rings)
            header = self._step[:_HEADER_BYTES].cpu().numpy().tobytes()
            kind, program = (_u32(header, getattr(self._step_layout, name).offset) for name in ("kind", "program"))
            if kind != StepKind.IDLE:
                self._launch(program)
            self._stream.synchronize()
        return StepKind(kind)

    def stop(self) -> None:
        """Let the step that runs be the last one, and tell the frontends. Raises DriveError if a launch had failed."""
        with torch.cuda.stream(self._control):
            self._word("stop").fill_(1)
        self._stream.synchronize()
        self._announce(ready=0, stopped=1)
        error = self._word("error").item()
        if error:
            raise DriveError(f"the device could not launch a step: CUDA error {error}")

    def _launch_step(self, program: Program) -> None:
        self.executor.launch(program)
        if self._driver == "device":
            self._launch_drive()

    def _launch(self, program: int) -> None:
        if self._graphs:
            self._graphs[program].launch()
        else:
            self.executor.launch(self._plan.schedule.programs[program])

    def _launch_first(self) -> None:
        assert self._first is not None  # the host does not drive
        with torch.cuda.stream(self._stream):
            self._first.launch()

    def _launch_drive(self) -> None:
        self._cubin.launch("dp_drive", (1,), self._state, self._step, self._rings, self._drive)

    def _sample(self, logits: torch.Tensor) -> None:
        stride = ctypes.c_int64(logits.stride(0))
        operands = (self._state, self._step, logits, stride, self._scratch)
        self._cubin.launch("dp_sample", (len(logits),), *operands)

    def _announce(self, ready: int, stopped: int) -> None:
        with torch.cuda.stream(self._control):
            self._cubin.launch("dp_announce", (1,), self._rings, ready, stopped)
            self._control.synchronize()

    def _word(self, name: str) -> torch.Tensor:
        """A u32 of `Drive`, where it lies."""
        begin = getattr(self._layout, name).offset
        return self._drive[begin : begin + 4].view(torch.int32)


def _zeros(size: int) -> torch.Tensor:
    return torch.zeros(size, dtype=torch.uint8, device="cuda")


def _u32(data: bytes, offset: int) -> int:
    return int.from_bytes(data[offset : offset + 4], "little")
