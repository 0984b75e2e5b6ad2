"""What frontends count, in memory that each can read of all: `/metrics` says the same whichever of them is asked.

prometheus_client would do it too: on the machine of this repository's CI it took 74 ms to import, 1.1 us an
observation and 2.7 us with several processes, against 0.3 us here; a frontend makes one for every token.
"""

import mmap
import os
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from pathlib import Path

CELL = 8


@dataclass(frozen=True, slots=True)
class Counter:
    """A total, or one for each of the `values` of a label."""

    name: str
    help: str
    label: str = ""
    values: tuple[str, ...] = ("",)

    @property
    def cells(self) -> int:
        """How many numbers it is."""
        return len(self.values)


@dataclass(frozen=True, slots=True)
class Histogram:
    """A distribution: observations at most each of `bounds` and above the one before it, those above all, their sum."""

    name: str
    help: str
    bounds: tuple[float, ...]

    @property
    def cells(self) -> int:
        """How many numbers it is."""
        return len(self.bounds) + 2


def _scale(steps: Sequence[float], first: int, last: int) -> tuple[float, ...]:
    """`steps` of each power of ten from 10**first to before 10**last, and that one."""
    return (*(float(f"{step}e{power}") for power in range(first, last) for step in steps), float(f"1e{last}"))


# Fine enough for quantiles to be read off them.
_SECONDS = (1, 1.5, 2, 2.5, 3, 4, 5, 6, 8)
_TOKENS = _scale((1, 2, 5), 0, 6)

TTFT = Histogram(
    "dualpace_time_to_first_token_seconds",
    "From a request's whole body to the first token of a choice (TTFT).",
    _scale(_SECONDS, -3, 2),
)
TPOT = Histogram(
    "dualpace_time_per_output_token_seconds",
    "Mean time between the tokens of a choice (TPOT), of those that came to their end with two tokens or more.",
    _scale(_SECONDS, -4, 1),
)
ITL = Histogram(
    "dualpace_inter_token_latency_seconds", "Between two tokens of a choice (ITL).", _scale(_SECONDS, -4, 1)
)
DURATION = Histogram(
    "dualpace_request_seconds",
    "From a request's whole body to the end of a choice, of those that came to it.",
    _scale(_SECONDS, -3, 3),
)
DECODE = Histogram(
    "dualpace_request_decode_seconds",
    "From the first to the last token of a choice, of those that came to their end.",
    _scale(_SECONDS, -3, 3),
)
PROMPT_LENGTH = Histogram("dualpace_request_prompt_tokens", "Tokens of the prompt of a choice that began.", _TOKENS)
GENERATED_LENGTH = Histogram("dualpace_request_generated_tokens", "Tokens of a choice that came to its end.", _TOKENS)
PROMPT_TOKENS = Counter("dualpace_prompt_tokens_total", "Tokens of the prompts of choices that began.")
CACHED_TOKENS = Counter("dualpace_cached_tokens_total", "Of these, tokens whose KV was found in the prefix cache.")
GENERATED_TOKENS = Counter("dualpace_generated_tokens_total", "Tokens generated, as frontends received them.")
FINISHED = Counter(
    "dualpace_choices_total",
    "Choices by how they ended: as clients were told, abort for a client that left.",
    "finish_reason",
    ("stop", "length", "abort", "error"),
)
REJECTED = Counter(
    "dualpace_rejected_requests_total",
    "Requests for completions that were answered with an error, by HTTP status.",
    "status",
    ("400", "401", "404", "405", "408", "413", "415", "429", "500", "503", "other"),
)
RESPONSES = Counter(
    "dualpace_http_responses_total",
    "HTTP responses to requests that could be read, by the class of their status.",
    "class",
    ("2xx", "3xx", "4xx", "5xx"),
)

Family = Counter | Histogram
FAMILIES: tuple[Family, ...] = (
    TTFT, TPOT, ITL, DURATION, DECODE, PROMPT_LENGTH, GENERATED_LENGTH,
    PROMPT_TOKENS, CACHED_TOKENS, GENERATED_TOKENS, FINISHED, REJECTED, RESPONSES,
)  # fmt: skip
_BOUNDARIES = tuple(accumulate((family.cells for family in FAMILIES), initial=0))
_BYTES = CELL * _BOUNDARIES[-1]


class Tally:
    """One frontend's counts. Only its own process adds to them, from one thread."""

    def __init__(self, beside: Path | None = None, frontend: int = 0) -> None:
        """Counts go on in a file `beside` the rings, if these are one, where `frontend` left off."""
        self._beside = beside
        memory = mmap.mmap(-1, _BYTES) if beside is None else _mapped(_file(beside, str(frontend)))
        self._cells = _cut(memory)
        histograms = (family for family in FAMILIES if isinstance(family, Histogram))
        self._observers = {one.name: _observer(one.bounds, self._cells[one.name]) for one in histograms}

    def add(self, counter: Counter, count: int = 1, value: str = "") -> None:
        """Count, for `value` of the counter's label if it has one."""
        self._cells[counter.name][counter.values.index(value)] += count

    def observe(self, histogram: Histogram, value: float) -> None:
        """Count one observation."""
        self._observers[histogram.name](value)

    def merge(self, histogram: Histogram, cells: Sequence[float]) -> None:
        """Count observations that were counted elsewhere, in cells like a histogram's own."""
        mine = self._cells[histogram.name]
        for at, count in enumerate(cells):
            if count:
                mine[at] += count

    def observer(self, histogram: Histogram) -> Callable[[float], None]:
        """What counts one observation, for who has many."""
        return self._observers[histogram.name]

    def totals(self) -> dict[str, list[float]]:
        """The cells of each family by name, of all frontends together."""
        if self._beside is None:
            every = [self._cells]
        else:
            files = self._beside.parent.glob(_file(self._beside, "*").name)
            # A file that another frontend is making just now is empty.
            every = [_cut(memory) for file in files if len(memory := file.read_bytes()) == _BYTES]
        return {
            family.name: [sum(cells) for cells in zip(*(one[family.name] for one in every), strict=True)]
            for family in FAMILIES
        }


def _observer(bounds: Sequence[float], cells: "memoryview[float]") -> Callable[[float], None]:
    above = len(bounds) + 1

    def observe(value: float) -> None:
        cells[bisect_left(bounds, value)] += 1
        cells[above] += value

    return observe


def _file(rings: Path, frontend: str) -> Path:
    return rings.with_name(f"{rings.name}.tally.{frontend}")


def _mapped(file: Path) -> mmap.mmap:
    descriptor = os.open(file, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        os.ftruncate(descriptor, _BYTES)
        return mmap.mmap(descriptor, _BYTES)
    finally:
        os.close(descriptor)


def _cut(memory: mmap.mmap | bytes) -> dict[str, "memoryview[float]"]:
    cells: memoryview[float] = memoryview(memory).cast("d")
    return {family.name: cells[begin:end] for family, (begin, end) in zip(FAMILIES, pairwise(_BOUNDARIES), strict=True)}
