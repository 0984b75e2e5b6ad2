"""The engine's process, on the CPU or on a GPU as the bundle says.

    python -m dualpace.engine BUNDLE --rings FILE [--threads N] [--drive DRIVER]

Exit code 0 once stopped by SIGTERM or SIGINT; one of REFUSALS with one line on stderr for a bundle that cannot be
served, here or anywhere; 1 for a GPU that fails.
"""

import argparse
import logging
import os
import signal
import sys
from pathlib import Path
from types import FrameType

from dualpace.engine.threads import default_threads
from dualpace.exits import Exit
from dualpace.plan.manifest import BundleError, HardwareError, Manifest, WeightsError, read_manifest

_RUNTIME = {
    "cpu": {
        # About 20 us of waiting for each other before threads sleep, where OpenMP's default is milliseconds: longer
        # than the gaps between kernels, and short enough to yield the core on a machine that does other work.
        "GOMP_SPINCOUNT": "2000",
        # Large tensors in huge pages: weights are read once a step, and page walks cost bandwidth.
        "THP_MEM_ALLOC_ENABLE": "1",
    },
    # A kernel that is loaded at its first launch waits for a device that never falls idle.
    "cuda": {"CUDA_MODULE_LOADING": "EAGER"},
}


class Stop:
    """Set by the signals that ask the engine to end."""

    def __init__(self) -> None:
        self.asked = False
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._ask)

    def _ask(self, number: int, frame: FrameType | None) -> None:
        self.asked = True


def main() -> int:
    """Entry point."""
    stop = Stop()
    arguments = _arguments()
    logging.basicConfig(format="engine: %(message)s")
    logging.getLogger("dualpace").setLevel(logging.INFO)
    try:
        manifest = read_manifest(arguments.bundle)
    except BundleError as error:
        _say(str(error))
        return 2
    target = manifest.plan.target.kind
    for name, value in _RUNTIME[target].items():
        os.environ.setdefault(name, value)
    # Only now: this loads torch and with it the OpenMP runtime, and both read their environment once.
    try:
        return (_serve_gpu if target == "cuda" else _serve_cpu)(manifest, arguments, stop)
    except ImportError as error:
        extras = "serve,cuda" if target == "cuda" else "serve"
        needs = f"serving on {'a GPU' if target == 'cuda' else 'the CPU'} needs {error.name}"
        # One that has no name says itself what to do.
        _say(f"{needs}: run `pip install 'dualpace[{extras}]'`" if error.name else str(error))
        return 2


def _serve_cpu(manifest: Manifest, arguments: argparse.Namespace, stop: Stop) -> int:
    from dualpace.engine.memory import RingMemoryError
    from dualpace.engine.scheduler import LayoutError
    from dualpace.engine.serve import serve
    from dualpace.model.error import ModelError

    try:
        serve(arguments.bundle, manifest, arguments.rings, arguments.threads, lambda: stop.asked, _say)
    except (BundleError, LayoutError, RingMemoryError, ModelError) as error:
        return _refuse(error)
    # At once: to take torch down lasts half a second of what a container has for its end.
    os._exit(0)


def _serve_gpu(manifest: Manifest, arguments: argparse.Namespace, stop: Stop) -> int:
    from dualpace.engine.device import DeviceError
    from dualpace.engine.drive import DriveError
    from dualpace.engine.memory import RingMemoryError
    from dualpace.engine.serve_gpu import serve
    from dualpace.model.error import ModelError

    try:
        serve(arguments.bundle, manifest, arguments.rings, arguments.drive, lambda: stop.asked, _say)
    except (BundleError, RingMemoryError, ModelError) as error:
        return _refuse(error)
    except (DeviceError, DriveError) as error:
        _say(str(error))
        # At once: on a device that has failed, freeing what is on it may abort.
        os._exit(1)
    return 0


def _refuse(error: Exception) -> int:
    """Say why, and return the exit code that tells whose fault it is."""
    from dualpace.engine.memory import RingMemoryError
    from dualpace.model.error import ModelError

    _say(str(error))
    if isinstance(error, WeightsError | ModelError):
        return Exit.WEIGHTS
    return Exit.HARDWARE if isinstance(error, HardwareError | RingMemoryError) else Exit.USAGE


def _say(text: str) -> None:
    sys.stderr.write(f"engine: {text}\n")
    sys.stderr.flush()


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m dualpace.engine", description="The engine of a bundle.")
    parser.add_argument("bundle", type=Path, metavar="BUNDLE")
    parser.add_argument("--rings", type=Path, required=True, metavar="FILE", help="shared memory file to create")
    parser.add_argument(
        "--threads",
        type=int,
        default=default_threads(),
        metavar="N",
        help="of the CPU; default: %(default)s, the cores it may use",
    )
    parser.add_argument(
        "--drive",
        choices=("device", "host", "operations"),
        default="device",
        help="who launches a GPU's steps; `host`, and `operations` one by one, are for profilers and sanitizers",
    )
    arguments = parser.parse_args()
    if arguments.threads < 1:
        parser.error(f"--threads {arguments.threads}: must be at least 1")
    return arguments


if __name__ == "__main__":
    sys.exit(main())
