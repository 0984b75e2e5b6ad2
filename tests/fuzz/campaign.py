"""What fuzzers share: their command line, and an eye on memory."""

import resource
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import atheris

CORPUS = Path(__file__).parent / "corpus"
# Memory is compared from here on: caches are full, and libFuzzer has its corpus.
WARM = 5_000
EVERY = 5_000


class Memory:
    """Watches the peak of this process's memory, in MiB."""

    def __init__(self) -> None:
        self.executions = 0
        self.warm = 0.0

    def count(self) -> None:
        """Count an execution, and say now and then what memory does."""
        self.executions += 1
        if self.executions == WARM:
            self.warm = peak()
        elif self.executions % EVERY == 0 and self.warm:
            # libFuzzer ends the process without a word to Python: the last of these lines counts.
            sys.stderr.write(f"executions {self.executions}, peak {peak():.0f} MiB, {self.warm:.0f} MiB when warm\n")


def peak() -> float:
    """The most memory that this process has had, in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def run(name: str, test: Callable[[bytes], None], **options: Any) -> None:
    """Fuzz `test` from the committed corpus `name`, with libFuzzer's flags from the command line."""
    memory = Memory()

    def counted(data: bytes) -> None:
        memory.count()
        test(data)

    one = any(Path(argument).is_file() for argument in sys.argv[1:])  # an input to try again
    atheris.Setup([*sys.argv, *([] if one else [str(CORPUS / name)])], counted, **options)
    atheris.Fuzz()
