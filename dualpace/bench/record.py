"""What a run keeps: numbers in columns for each request, a histogram of the gaps between tokens, counts by time.

Nothing is kept for each token: an hour at 20,000 tokens a second takes no more memory than its requests.
"""

import math
import time
from array import array

import numpy as np
from numpy.typing import NDArray

from dualpace.bench.answer import Answer

Floats = NDArray[np.float64]
Counts = NDArray[np.int64]

# Histograms have so many bins for a factor of two: quantiles are true to 0.3%.
BINS_PER_OCTAVE = 128
SHORTEST_S = 1e-6
BINS = BINS_PER_OCTAVE * 30
# Parts of the run in order of time, by which it is seen how much neighbours have in common.
BLOCKS = 32
SLOT_S = 0.1
# Of errors, told apart: a server may put into each what no other has.
MOST_KINDS = 100
OTHERS = "others, of more kinds than are told apart"
COLUMNS = ("intended", "sent", "first", "last", "end", "pieces", "tokens", "prompt", "cached", "asked", "error")


class Record:
    """The answers of a run that began at `start`; gaps only of those intended after the first `warm_up_s` of it."""

    def __init__(self, start: float, warm_up_s: float) -> None:
        self.start = start
        self.warm_up_s = warm_up_s
        self._columns = {name: array("d") for name in COLUMNS}
        self.gaps: Counts = np.zeros((BLOCKS, BINS), np.int64)
        self.sent_late = Histogram()
        self.seen_late = Histogram()
        self.errors: list[str] = []
        self.pieces_by_slot: Counts = np.zeros(64, np.int64)
        self.pieces = self.failed = 0

    def add(self, answer: Answer) -> None:
        """Count an answer that has ended."""
        arrivals = np.array(answer.arrivals or (answer.end,))
        if answer.error is None:
            self._count(((arrivals - self.start) / SLOT_S).astype(np.int64))
            if answer.intended - self.start >= self.warm_up_s:
                np.add.at(self.gaps[answer.block], bin_of(np.diff(arrivals)), 1)
        values = (
            *(time - self.start for time in (answer.intended, answer.sent, arrivals[0], arrivals[-1], answer.end)),
            len(answer.arrivals), answer.tokens, answer.prompt, answer.cached, answer.asked, self._code(answer.error),
        )  # fmt: skip
        for column, value in zip(self._columns.values(), values, strict=True):
            column.append(value)

    def sent(self, intended: float, now: float) -> None:
        """A request that was to be sent at `intended` was at `now`."""
        if intended - self.start >= self.warm_up_s:
            self.sent_late.add(now - intended)

    def seen(self, late_s: float) -> None:
        """What has come just now may have been there for so long."""
        if time.monotonic() - self.start >= self.warm_up_s:
            self.seen_late.add(late_s)

    def columns(self) -> dict[str, Floats]:
        """A number for each request, in order of their intended times. `error` is 0, or the place in `errors` plus 1.

        Times are in seconds from the start of the run; those of a failure without any text are its end.
        """
        order = np.argsort(np.array(self._columns["intended"]), kind="stable")
        return {name: np.array(column)[order] for name, column in self._columns.items()}

    def __len__(self) -> int:
        return len(self._columns["intended"])

    def _code(self, error: str | None) -> int:
        if error is None:
            return 0
        self.failed += 1
        if error not in self.errors and len(self.errors) >= MOST_KINDS:
            error = OTHERS
        if error not in self.errors:
            self.errors.append(error)
        return self.errors.index(error) + 1

    def _count(self, slots: Counts) -> None:
        missing = int(slots[-1]) + 1 - len(self.pieces_by_slot)
        if missing > 0:
            room: Counts = np.zeros(max(missing, len(self.pieces_by_slot)), np.int64)
            self.pieces_by_slot = np.concatenate((self.pieces_by_slot, room))
        np.add.at(self.pieces_by_slot, slots, 1)
        self.pieces += len(slots)


class Histogram:
    """Counts of times by bin."""

    def __init__(self) -> None:
        self.counts: Counts = np.zeros(BINS, np.int64)

    def add(self, seconds: float) -> None:
        """Count one."""
        octaves = math.log2(max(seconds, SHORTEST_S) / SHORTEST_S)
        self.counts[min(int(octaves * BINS_PER_OCTAVE), BINS - 1)] += 1


def bin_of(times: Floats) -> Counts:
    """The bin of each time, in seconds."""
    octaves = np.log2(np.maximum(times, SHORTEST_S) / SHORTEST_S)
    bins: Counts = np.minimum(octaves * BINS_PER_OCTAVE, BINS - 1).astype(np.int64)
    return bins


def edges() -> Floats:
    """The lower edges of the bins in seconds, and the last one's upper edge; what is shorter counts as nothing."""
    lower = SHORTEST_S * 2 ** (np.arange(BINS + 1) / BINS_PER_OCTAVE)
    lower[0] = 0
    return lower
