"""The CPU engine's process.

    python -m dualpace.engine.cpu BUNDLE --rings FILE [--threads N]

Exit code 0 once stopped by SIGTERM or SIGINT, 2 with one line on stderr for a bundle or rings that cannot be served.
"""

import argparse
import os
import signal
import sys
from pathlib import Path
from types import FrameType

from dualpace.engine.threads import default_threads

_RUNTIME = {
    # About 20 us of waiting for each other before threads sleep, where OpenMP's default is milliseconds: longer than
    # the gaps between kernels, and short enough to yield the core on a machine that does other work.
    "GOMP_SPINCOUNT": "2000",
    # Large tensors in huge pages: weights are read once a step, and page walks cost bandwidth.
    "THP_MEM_ALLOC_ENABLE": "1",
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
    for name, value in _RUNTIME.items():
        os.environ.setdefault(name, value)
    # Only now: this loads torch and with it the OpenMP runtime, and both read their environment once.
    try:
        from dualpace.engine.memory import RingMemoryError
        from dualpace.engine.scheduler import LayoutError
        from dualpace.engine.serve import serve
        from dualpace.model.error import ModelError
        from dualpace.plan.manifest import BundleError
    except ImportError as error:
        _say(f"serving on the CPU needs {error.name or error}: run `pip install dualpace[serve]`")
        return 2

    try:
        serve(arguments.bundle, arguments.rings, arguments.threads, lambda: stop.asked, _say)
    except (BundleError, LayoutError, RingMemoryError, ModelError) as error:
        _say(str(error))
        return 2
    return 0


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


if __name__ == "__main__":
    sys.exit(main())
