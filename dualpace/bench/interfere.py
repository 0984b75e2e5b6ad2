"""Work for the CPUs beside the server: what shares a machine with it in real life.

    python -m dualpace.bench.interfere copy|compress|compile SECONDS

Each worker is a process of one thread that ends by itself, and dies with whoever started it.
"""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from dualpace.process import die_with

COPIED_BYTES = 32 << 20
COMPRESSED_BYTES = 1 << 20
COMPILE_S = 30.0
# A translation unit whose templates keep a compiler busy for about a second.
SOURCE = """
#include <algorithm>
#include <map>
#include <regex>
#include <string>
#include <vector>
template <int N> std::map<std::string, std::vector<int>> table() {
  auto found = table<N - 1>();
  std::vector<int> values(N);
  std::sort(values.begin(), values.end(), [](int a, int b) { return a % N < b % N; });
  found[std::to_string(N)] = values;
  return found;
}
template <> std::map<std::string, std::vector<int>> table<0>() { return {}; }
int main() { return std::regex_match(table<24>().begin()->first, std::regex("[0-9]+")); }
"""


class InterferenceError(Exception):
    """Work that this machine cannot do."""


@contextmanager
def interfering(count: int, kind: str, cpus: Sequence[int], seconds: float) -> Iterator[None]:
    """So many workers on `cpus` (none: on all) until the block ends, and for `seconds` at most.

    Raises InterferenceError.
    """
    if kind == "compile" and shutil.which("g++") is None:
        raise InterferenceError("interference by compilation needs g++ on the PATH; copy and compress need nothing")
    if unknown := set(cpus) - os.sched_getaffinity(0):
        raise InterferenceError(f"CPU {min(unknown)} is not one of this process's: {sorted(os.sched_getaffinity(0))}")
    command = [sys.executable, "-m", "dualpace.bench.interfere", kind, str(seconds)]
    workers = []
    try:
        for _ in range(count):
            workers.append(subprocess.Popen(command, preexec_fn=partial(_bind, tuple(cpus), os.getpid())))
        yield
    finally:
        for worker in workers:
            worker.terminate()
        for worker in workers:
            worker.wait()


def _bind(cpus: tuple[int, ...], parent: int) -> None:
    die_with(parent)
    if cpus:
        os.sched_setaffinity(0, cpus)


def work(kind: str, seconds: float) -> int:
    """Work for so long; how often a piece of it was done."""
    done = 0
    with tempfile.TemporaryDirectory() as folder:
        piece = _copying() if kind == "copy" else _compressing() if kind == "compress" else _compiling(Path(folder))
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            piece()
            done += 1
    return done


def _copying() -> Callable[[], object]:
    data = bytearray(COPIED_BYTES)

    def piece() -> None:
        bytes(data)
        sum(i * i for i in range(200_000))

    return piece


def _compressing() -> Callable[[], object]:
    words = b" ".join(b"%x" % (i * 2_654_435_761 % 65_521) for i in range(COMPRESSED_BYTES // 5))
    return lambda: zlib.compress(words, 6)


def _compiling(folder: Path) -> Callable[[], object]:
    source = folder / "unit.cpp"
    source.write_text(SOURCE, encoding="utf-8")
    command = ["g++", "-O2", "-std=c++17", str(source), "-o", str(folder / "unit")]
    return lambda: subprocess.run(command, check=True, timeout=COMPILE_S)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    work(sys.argv[1], float(sys.argv[2]))
