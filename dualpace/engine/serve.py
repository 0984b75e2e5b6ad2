"""Serves a bundle on the CPU: schedule, execute, sample, until told to stop."""

import time
from collections.abc import Callable
from pathlib import Path

import torch

from dualpace.engine.executor import Executor
from dualpace.engine.kernels import Kernels
from dualpace.engine.memory import RingMemory
from dualpace.engine.scheduler import HostScheduler
from dualpace.model.random import random_weights
from dualpace.model.tokenizer import Tokenizer
from dualpace.model.weights import load
from dualpace.plan.abi import layout_hash
from dualpace.plan.manifest import HOST_ENGINE, TOKENIZER, BundleError, Manifest, check_weights, read_manifest
from dualpace.plan.structs import StepKind

# Also how long a stop may wait while the engine is idle, and the least pace of the heartbeat.
_IDLE_SECONDS = 0.1
_REPORT_SECONDS = 1.0

Say = Callable[[str], None]


class _StoppedError(Exception):
    """Told to stop while the model was loading."""


def serve(bundle: Path, rings: Path, threads: int, stopped: Callable[[], bool], say: Say) -> None:
    """Serve `bundle` over the rings at `rings` until `stopped()`; progress goes to `say`.

    Raises BundleError, LayoutError, RingMemoryError or ModelError for what cannot be served.
    """
    manifest = read_manifest(bundle)
    _check(bundle, manifest)
    plan = manifest.plan
    torch.set_num_threads(threads)
    kernels = Kernels(bundle / HOST_ENGINE)
    memory = RingMemory(rings, plan)
    try:
        vocabulary = _vocabulary(bundle, manifest)
        with HostScheduler(bundle / HOST_ENGINE, memory, plan, vocabulary=vocabulary, threads=threads) as scheduler:

            def sample(logits: int) -> None:
                scheduler.sample(logits, plan.model.vocab)

            weights = _weights(manifest, say, stopped)
            executor = Executor(plan, weights, kernels, scheduler.step_address, sample, scheduler.beat)
            say(f"ready, {threads} threads, {kernels.isa} kernels")
            scheduler.announce(ready=True)
            try:
                _loop(scheduler, executor, stopped)
            finally:
                scheduler.announce(stopped=True)
    except _StoppedError:
        pass
    finally:
        memory.close()


def _loop(scheduler: HostScheduler, executor: Executor, stopped: Callable[[], bool]) -> None:
    while not stopped():
        step = scheduler.schedule()
        if step.kind is StepKind.IDLE:
            scheduler.wait(_IDLE_SECONDS)
        else:
            executor.run(step.tokens, step.samples)


def _check(bundle: Path, manifest: Manifest) -> None:
    plan = manifest.plan
    if plan.target.kind != "cpu":
        raise BundleError(f"{bundle} is built for {plan.target.name}: build a spec with `target: {{cpu: true}}`")
    if torch.backends.cpu.get_cpu_capability() == "DEFAULT":
        raise BundleError(
            f"{bundle} needs a CPU of x86-64-v3, with AVX2, and this machine has none: serve it on another"
        )
    layout = layout_hash(plan)
    if manifest.layout != layout:
        raise BundleError(
            f"{bundle} has layout {manifest.layout}, this version of dualpace makes {layout}: build the spec again"
        )
    if manifest.weights is not None:
        check_weights(manifest.weights)


def _vocabulary(bundle: Path, manifest: Manifest) -> int:
    """Ids that a text can hold; the model's vocabulary may be padded beyond them."""
    vocabulary = manifest.plan.model.vocab
    return min(vocabulary, Tokenizer(bundle).id_bound) if (bundle / TOKENIZER).is_file() else vocabulary


def _weights(manifest: Manifest, say: Say, stopped: Callable[[], bool]) -> dict[str, torch.Tensor]:
    """The weight table. Raises ModelError, and _StoppedError once `stopped()`."""
    if manifest.weights is None:
        return random_weights(manifest.plan, _reporter("making weights", say, stopped))
    return load(manifest.plan, Path(manifest.weights.folder), _reporter("loading weights", say, stopped))


def _reporter(what: str, say: Say, stopped: Callable[[], bool]) -> Callable[[int, int], None]:
    """Progress in bytes, at most once a second. Called after each tensor, it is also where loading ends early."""
    said = time.monotonic()

    def report(done: int, total: int) -> None:
        nonlocal said
        if stopped():
            raise _StoppedError
        if time.monotonic() - said >= _REPORT_SECONDS:
            said = time.monotonic()
            say(f"{what}: {done >> 20} of {total >> 20} MiB")

    return report
