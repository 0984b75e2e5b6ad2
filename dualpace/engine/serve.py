"""Serves a bundle on the CPU: schedule, execute, sample, until told to stop."""

from collections.abc import Callable
from pathlib import Path

import torch

from dualpace.engine.executor import Executor
from dualpace.engine.frontends import serving_frontends
from dualpace.engine.kernels import Kernels
from dualpace.engine.memory import RingMemory
from dualpace.engine.provision import Say, StoppedError, check_bundle, vocabulary, weights
from dualpace.engine.scheduler import HostScheduler
from dualpace.engine.slow_lane import SlowLane
from dualpace.plan.manifest import HOST_ENGINE, BundleError, Manifest
from dualpace.plan.plan import Plan
from dualpace.plan.structs import StepKind

# Also how long a stop may wait while the engine is idle, and the least pace of the heartbeat.
_IDLE_SECONDS = 0.1


def serve(bundle: Path, manifest: Manifest, rings: Path, threads: int, stopped: Callable[[], bool], say: Say) -> None:
    """Serve `bundle`, whose `manifest` was read, over the rings at `rings` until `stopped()`; progress goes to `say`.

    Raises BundleError, LayoutError, RingMemoryError or ModelError for what cannot be served.
    """
    check_bundle(bundle, manifest)
    plan = manifest.plan
    _check(bundle, plan)
    torch.set_num_threads(threads)
    kernels = Kernels(bundle / HOST_ENGINE)
    memory = RingMemory(rings, plan)
    try:
        ids = vocabulary(bundle, manifest)
        with (
            serving_frontends(bundle, manifest, memory, say),
            HostScheduler(bundle / HOST_ENGINE, memory, plan, vocabulary=ids, threads=threads) as scheduler,
        ):

            def sample(logits: int) -> None:
                scheduler.sample(logits, plan.model.vocab)

            table = weights(manifest, "cpu", say, stopped)
            executor = Executor(plan, table, kernels, scheduler.step_address, sample, scheduler.beat)
            slow = None
            if plan.offload.mode != "off":
                slow = SlowLane(bundle / HOST_ENGINE, plan, table, kernels, scheduler, executor.pools)
            say(f"ready, {threads} threads, {kernels.isa} kernels")
            scheduler.announce(ready=True)
            try:
                loop(scheduler, executor, slow, stopped)
            finally:
                scheduler.announce(stopped=True)
                if slow:
                    slow.close()
    except StoppedError:
        pass
    finally:
        memory.close()


def loop(scheduler: HostScheduler, executor: Executor, slow: SlowLane | None, stopped: Callable[[], bool]) -> None:
    """Step until `stopped()`: the fast lane whenever it has something to do, the slow one as far as it gets between."""
    while not stopped():
        step = scheduler.schedule()
        if step.kind is not StepKind.IDLE:
            executor.run(step.tokens, step.samples)
        went_on = slow.go_on() if slow else False
        if step.kind is StepKind.IDLE and not went_on:
            scheduler.wait(_IDLE_SECONDS)


def _check(bundle: Path, plan: Plan) -> None:
    if plan.target.kind != "cpu":
        raise BundleError(f"{bundle} is built for {plan.target.name}: build a spec with `target: {{cpu: true}}`")
    if torch.backends.cpu.get_cpu_capability() == "DEFAULT":
        raise BundleError(
            f"{bundle} needs a CPU of x86-64-v3, with AVX2, and this machine has none: serve it on another"
        )
