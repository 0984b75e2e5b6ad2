"""An engine that plays a text at a set pace through the real rings, for measuring what is in front of it.

    python -m benchmarks.replay BUNDLE --rings FILE [--step-ms 25] [--text FILE] [--log FILE]

Scheduler, rings and status are those of the bundle's engine; there is no model. Each row is given the tokens of the
text in order, as often as it takes, one a step. At its end, at SIGTERM or SIGINT, it writes to `--log` when each
request became visible in its ring and when each of its tokens was published, as records of `MOMENT`.
"""

import argparse
import ctypes
import signal
import sys
from pathlib import Path

from dualpace.build.bundle import SOURCES
from dualpace.build.compile import compile_libraries
from dualpace.build.progress import report_to
from dualpace.build.store import Store
from dualpace.build.units import HOST, SHARED, Library, Unit
from dualpace.engine.frontends import serving_frontends
from dualpace.engine.memory import RingMemory
from dualpace.model.tokenizer import Tokenizer
from dualpace.plan.abi import layout_hash
from dualpace.plan.manifest import TOKENIZER, Manifest, read_manifest

LIBRARY = "libreplay.so"
SCHEDULER = ("-march=x86-64-v3", "-ffp-contract=off")
SOURCE = Path(__file__).with_suffix(".cpp")
STORE = Path.home() / ".cache/dualpace"
# By seed: `count` is the tokens of the request so far; what happened is ARRIVAL or TOKEN.
MOMENT = [("seed", "u8"), ("count", "u4"), ("what", "u4"), ("ns", "u8")]
ARRIVAL, TOKEN = 0, 1
TEXT = "The quick brown fox jumps over the lazy dog, and the dog sleeps on while it is told of a hundred other foxes. "
# How long a signal may wait.
_SLICE_US = 100_000


def compiled(bundle: Path, store: Path = STORE) -> Path:
    """The replay engine of the plan of `bundle`, compiled from the sources that the bundle has."""
    folder = bundle / SOURCES
    sources = {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*") if path.is_file()}
    sources |= {f"host/{path.name}": path.read_text() for path in (SOURCE, SOURCE.with_name("moment.hpp"))}
    unit = Unit(
        tool="g++",
        source=f"host/{SOURCE.name}",
        object=f"{SOURCE.name}.o",
        label="the replay engine",
        flags=(*HOST, *SCHEDULER),
    )
    made = Library(tool="g++", output=LIBRARY, units=(unit,), flags=SHARED)
    with report_to(sys.stderr) as progress:
        return compile_libraries([made], sources, Store(store), progress)[made.output]


def script(bundle: Path, manifest: Manifest, text: str) -> list[int]:
    """The tokens of `text`; without a tokenizer all there are."""
    if (bundle / TOKENIZER).is_file():
        return Tokenizer(bundle).encode(text, add_special=False)
    return list(range(manifest.plan.model.vocab))


class Replay:
    """The engine over the rings that it makes at `rings`."""

    def __init__(self, bundle: Path, library: Path, rings: Path, text: str, step_s: float) -> None:
        self._bundle, self._manifest = bundle, read_manifest(bundle)
        manifest = self._manifest
        self._library = ctypes.CDLL(str(library))
        self._library.dp_replay_create.restype = ctypes.c_void_p
        self._library.dp_replay_layout.restype = ctypes.c_uint64
        assert f"{self._library.dp_replay_layout():016x}" == layout_hash(manifest.plan)
        tokens = script(bundle, manifest, text)
        self._memory = RingMemory(rings, manifest.plan)
        self._handle = ctypes.c_void_p(
            self._library.dp_replay_create(
                ctypes.c_void_p(self._memory.address),
                manifest.plan.model.vocab,
                (ctypes.c_int32 * len(tokens))(*tokens),
                len(tokens),
                ctypes.c_uint64(round(step_s * 1e9)),
            )
        )

    def play(self, log: Path | None) -> None:
        """Play until SIGTERM or SIGINT, then write the log."""
        asked: list[int] = []
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda number, _: asked.append(number))
        with serving_frontends(self._bundle, self._manifest, self._memory, say):
            while not asked:
                self._library.dp_replay_run(self._handle, ctypes.c_uint64(_SLICE_US))
        written = self._library.dp_replay_end(self._handle, str(log).encode() if log else None)
        self._memory.close()
        if not written:
            raise SystemExit(f"{log}: cannot be written")


def say(line: str) -> None:
    """A line about what goes on beside the play."""
    sys.stderr.write(f"replay: {line}\n")
    sys.stderr.flush()


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.replay", description=__doc__.splitlines()[0])
    parser.add_argument("bundle", type=Path, metavar="BUNDLE")
    parser.add_argument("--rings", type=Path, required=True, metavar="FILE", help="shared memory file to create")
    parser.add_argument("--step-ms", type=float, default=25.0, help="from one token of a row to the next")
    parser.add_argument("--text", type=Path, help="what is played; by default a sentence in English")
    parser.add_argument("--library", type=Path, help="the engine, if it is compiled already")
    parser.add_argument("--log", type=Path, help="where what happened when is written")
    given = parser.parse_args()
    text = given.text.read_text() if given.text else TEXT
    library = given.library or compiled(given.bundle)
    Replay(given.bundle, library, given.rings, text, given.step_ms / 1e3).play(given.log)


if __name__ == "__main__":
    main()
