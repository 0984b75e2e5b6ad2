"""A load offered by a process of its own."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from dualpace.bench.interfere import InterferenceError, interfering
from dualpace.bench.load import Load
from dualpace.bench.result import Run
from dualpace.process import die_with

WORKER = "dualpace.bench.worker"
# What works beside a run that ends by its number of requests ends by itself after this.
UNLIMITED_S = 3600.0
NEEDED = ("httptools", "numpy", "uvloop")


class OfferError(Exception):
    """A load that could not be offered; the message says why, in a line. `ours` where the load generator failed."""

    def __init__(self, message: str, ours: bool = False) -> None:
        super().__init__(message)
        self.ours = ours


class Progress(NamedTuple):
    """How a run goes: seconds since it began; requests sent, active, ended and failed; pieces of text that came."""

    elapsed: float
    sent: int
    active: int
    ended: int
    failed: int
    pieces: int


Say = Callable[[Progress], object]


def offer(load: Load, key: str, say: Say = lambda _: None, each: Path | None = None) -> Run:
    """Offer a load to its server with the API key, or "", and tell how it goes twice a second.

    The file `each` gets a line a request. Raises OfferError.
    """
    if missing := [name for name in NEEDED if find_spec(name) is None]:
        raise OfferError(f"measuring needs {', '.join(missing)}: run `pip install 'dualpace[bench]'`")
    beside = load.interference
    most_s = (load.duration or UNLIMITED_S) + load.timeout
    try:
        with interfering(beside.workers, beside.kind, beside.cpus, most_s):
            return _offered(load, key, say, each)
    except InterferenceError as error:
        raise OfferError(str(error)) from error


def _offered(load: Load, key: str, say: Say, each: Path | None) -> Run:
    command = [sys.executable, "-m", WORKER]
    end = partial(die_with, os.getpid())
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, preexec_fn=end) as process:
        assert process.stdin
        assert process.stdout
        try:
            told = {"load": load.model_dump(mode="json"), "key": key, "each": None if each is None else str(each)}
            process.stdin.write(json.dumps(told) + "\n")
            process.stdin.close()
            for line in process.stdout:
                match json.loads(line):
                    case {"progress": values}:
                        say(Progress(**values))
                    case {"run": run}:
                        return Run.model_validate(run)
                    case {"error": message}:
                        raise OfferError(message)
        finally:
            process.kill()
    raise OfferError(f"the load generator ended with exit status {process.returncode}", ours=True)
