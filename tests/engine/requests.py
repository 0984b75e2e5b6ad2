"""Requests over the rings to an engine on the CPU, all in one thread."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch

from dualpace.engine.executor import Executor
from dualpace.engine.kernels import Kernels
from dualpace.engine.memory import RingMemory
from dualpace.engine.ring import FrontendRing, SamplingParams, Status, TokenEvent
from dualpace.engine.scheduler import HostScheduler
from dualpace.engine.slow_lane import SlowLane
from dualpace.plan.manifest import HOST_ENGINE, HOST_RING
from dualpace.plan.plan import Plan
from dualpace.plan.structs import StepKind


def answers(
    plan: Plan,
    weights: Mapping[str, torch.Tensor],
    libraries: Mapping[str, Path],
    rings: Path,
    requests: Sequence[tuple[list[int], SamplingParams]],
    seen: Callable[[Status], None] = lambda status: None,
) -> list[list[TokenEvent]]:
    """The events of each request; all are there from the start. `seen` is given what the engine says at the end."""
    memory = RingMemory(rings, plan)
    events: list[list[TokenEvent]] = [[] for _ in requests]
    with HostScheduler(libraries[HOST_ENGINE], memory, plan) as scheduler:
        ring = FrontendRing(libraries[HOST_RING], memory.path)
        executor = Executor(
            plan,
            weights,
            Kernels(libraries[HOST_ENGINE]),
            scheduler.step_address,
            lambda logits: scheduler.sample(logits, plan.model.vocab),
        )
        slow = None
        if plan.offload.mode != "off":
            kernels = Kernels(libraries[HOST_ENGINE])
            slow = SlowLane(libraries[HOST_ENGINE], plan, weights, kernels, scheduler, executor.pools)
        for tag, (prompt, params) in enumerate(requests):
            assert ring.submit(tag, prompt, params)
        while not all(own and own[-1].finish for own in events):
            step = scheduler.schedule()
            if step.kind is not StepKind.IDLE:
                executor.run(step.tokens, step.samples)
            if slow:
                slow.go_on()
            for event in ring.wait(0):
                events[event.tag].append(event)
        seen(ring.status())
        if slow:
            slow.close()
        ring.close()
    memory.close()
    return events
