"""The CPU engine's process: schedule, execute, sample, until told to stop.

    python -m dualpace.engine.cpu BUNDLE --rings FILE [--threads N]

Exit code 0 once stopped by SIGTERM or SIGINT, 2 with one line on stderr for a bundle or rings that cannot be served.
"""

import argparse
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import torch

from dualpace.engine.executor import Executor
from dualpace.engine.kernels import Kernels
from dualpace.engine.memory import RingMemory, RingMemoryError
from dualpace.engine.scheduler import HostScheduler, LayoutError
from dualpace.engine.threads import default_threads
from dualpace.model.error import ModelError
from dualpace.model.random import random_weights
from dualpace.model.tokenizer import Tokenizer
from dualpace.model.weights import load
from dualpace.plan.abi import layout_hash
from dualpace.plan.manifest import HOST_ENGINE, TOKENIZER, BundleError, Manifest, read_manifest
from dualpace.plan.structs import StepKind

# Also how long a signal may wait while the engine is idle, and the least pace of the heartbeat.
_IDLE_SECONDS = 0.1
_REPORT_SECONDS = 1.0


class Stop:
    """Set by the signals that ask the engine to end."""

    def __init__(self) -> None:
        self.asked = False
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._ask)

    def _ask(self, number: int, frame: FrameType | None) -> None:
        self.asked = True


def serve(bundle: Path, rings: Path, threads: int, stop: Stop) -> None:
    """Serve `bundle` over the rings at `rings` until asked to stop.

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

            executor = Executor(plan, _weights(manifest), kernels, scheduler.step_address, sample)
            _say(f"ready, {threads} threads, {kernels.isa} kernels")
            scheduler.announce(ready=True)
            try:
                _loop(scheduler, executor, stop)
            finally:
                scheduler.announce(stopped=True)
    finally:
        memory.close()


def _loop(scheduler: HostScheduler, executor: Executor, stop: Stop) -> None:
    while not stop.asked:
        step = scheduler.schedule()
        if step.kind is StepKind.IDLE:
            scheduler.wait(_IDLE_SECONDS)
        else:
            executor.run(step.tokens, step.samples)


def _check(bundle: Path, manifest: Manifest) -> None:
    plan = manifest.plan
    if plan.target.kind != "cpu":
        raise BundleError(f"{bundle} is built for {plan.target.name}: build a spec with `target: {{cpu: true}}`")
    layout = layout_hash(plan)
    if manifest.layout != layout:
        raise BundleError(
            f"{bundle} has layout {manifest.layout}, this version of dualpace makes {layout}: build the spec again"
        )


def _vocabulary(bundle: Path, manifest: Manifest) -> int:
    """Ids that a text can hold; the model's vocabulary may be padded beyond them."""
    vocabulary = manifest.plan.model.vocab
    return min(vocabulary, Tokenizer(bundle).vocab_size) if (bundle / TOKENIZER).is_file() else vocabulary


def _weights(manifest: Manifest) -> dict[str, torch.Tensor]:
    if manifest.weights is None:
        return random_weights(manifest.plan, _reporter("making weights"))
    return load(manifest.plan, Path(manifest.weights.folder), _reporter("loading weights"))


def _reporter(what: str) -> Callable[[int, int], None]:
    """Progress in bytes to stderr, at most once a second."""
    said = time.monotonic()

    def report(done: int, total: int) -> None:
        nonlocal said
        if time.monotonic() - said >= _REPORT_SECONDS:
            said = time.monotonic()
            _say(f"{what}: {done >> 20} of {total >> 20} MiB")

    return report


def _say(text: str) -> None:
    sys.stderr.write(f"engine: {text}\n")
    sys.stderr.flush()


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m dualpace.engine.cpu", description="The CPU engine of a bundle.")
    parser.add_argument("bundle", type=Path, metavar="BUNDLE")
    parser.add_argument("--rings", type=Path, required=True, metavar="FILE", help="shared memory file to create")
    parser.add_argument(
        "--threads", type=int, default=default_threads(), metavar="N", help="default: %(default)s, the cores it may use"
    )
    arguments = parser.parse_args()
    if arguments.threads < 1:
        parser.error(f"--threads {arguments.threads}: must be at least 1")
    return arguments


def main() -> int:
    """Entry point."""
    stop = Stop()
    arguments = _arguments()
    try:
        serve(arguments.bundle, arguments.rings, arguments.threads, stop)
    except (BundleError, LayoutError, RingMemoryError, ModelError) as error:
        _say(str(error))
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
