"""Percentiles, shares and rates with 95% confidence, for values whose neighbours in time are alike.

Requests that share a queue are late together, so n of them say less than n independent ones would. How much less is
seen from the run itself: the variance of the means of blocks in order of time, over what it would be if the values
were independent, is the inflation; n over it is the effective number that intervals are made with. That is enough
where neighbours are alike for less than a block, a 32nd of the run.
"""

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dualpace.bench.record import BLOCKS, Counts, Floats, edges

# Student's t for BLOCKS - 1 degrees of freedom, for the inflation is estimated from so many blocks.
Z = 2.04
# Student's t for BATCHES - 1 degrees of freedom.
BATCHES, T = 20, 2.093


class Estimate(NamedTuple):
    """A figure and its 95% interval; None where there is too little to tell."""

    value: float
    low: float | None
    high: float | None

    def times(self, factor: float) -> "Estimate":
        """The same in another unit."""
        low, high = (None if end is None else factor * end for end in self[1:])
        return Estimate(factor * self.value, low, high)


def needed(p: float) -> int:
    """Independent values without which the interval of quantile `p` has no end: all of them may lie on one side."""
    return math.ceil(math.log(0.025) / math.log(max(p, 1 - p)))


def quantile(values: Floats, p: float) -> Estimate:
    """Quantile `p` of at least one value, in order of time."""
    value = float(np.quantile(values, p))
    exceeds = values > value
    effective = len(values) / inflation(exceeds)
    if effective < needed(p):
        return Estimate(value, None, None)
    low, high = np.quantile(values, wilson(p, effective))
    return Estimate(value, float(low), float(high))


def histogram_quantile(counts: Counts, p: float) -> Estimate:
    """Quantile `p` of gaps counted by block and bin, `record.edges` being the bins' edges, in seconds."""
    total = counts.sum(0)
    value = of_histogram(total, p)
    exceeding = counts[:, np.searchsorted(edges(), value) :].sum(1)
    sizes = counts.sum(1)
    effective = sizes.sum() / _inflation_of_blocks(exceeding, sizes)
    if effective < needed(p):
        return Estimate(value, None, None)
    low, high = wilson(p, effective)
    return Estimate(value, of_histogram(total, low), of_histogram(total, high))


def of_histogram(counts: Counts, p: float) -> float:
    """Quantile `p` in seconds of times counted by bin, as if a bin's values were spread evenly over it."""
    used = np.flatnonzero(counts)
    if not len(used):
        return 0.0
    below = np.concatenate(([0], np.cumsum(counts[: used[-1] + 1])))
    return float(np.interp(p * below[-1], below, edges()[: len(below)]))


def share(holds: NDArray[np.bool_]) -> Estimate:
    """The share of at least one value, in order of time, for which something holds."""
    p = float(holds.mean())
    return Estimate(p, *wilson(p, len(holds) / inflation(holds)))


def wilson(p: float, n: float) -> tuple[float, float]:
    """Wilson's 95% interval of a share of `p` among `n` independent values."""
    centre = (p + Z * Z / (2 * n)) / (1 + Z * Z / n)
    half = Z / (1 + Z * Z / n) * math.sqrt(p * (1 - p) / n + Z * Z / (4 * n * n))
    return max(centre - half, 0.0), min(centre + half, 1.0)


def inflation(holds: NDArray[np.bool_]) -> float:
    """How many values in order of time say as much as one independent value would; 1 where there are few."""
    size = len(holds) // BLOCKS
    if size < 2:
        return 1.0
    blocks = holds[: size * BLOCKS].reshape(BLOCKS, size).sum(1)
    return _inflation_of_blocks(blocks, np.full(BLOCKS, size))


def _inflation_of_blocks(holding: NDArray[np.integer], sizes: NDArray[np.integer]) -> float:
    """The same, from each block's size and how many of its values hold."""
    used = sizes > 0
    if used.sum() < 2:
        return math.inf  # neighbours cannot be told from the others
    p = holding.sum() / max(sizes.sum(), 1)
    if p in (0, 1):
        return 1.0
    excess = (holding[used] - sizes[used] * p) ** 2 / (sizes[used] * p * (1 - p))
    return max(float(excess.sum() / (used.sum() - 1)), 1.0)


def rate(counts: Counts, seconds: float) -> Estimate:
    """Events a second from their number in each of at least one slot of time, `seconds` in all."""
    value = float(counts.sum() / seconds)
    if len(counts) < BATCHES or counts.sum() < BATCHES:
        return Estimate(value, None, None)
    ends = np.linspace(0, len(counts), BATCHES + 1).astype(int)
    batches = np.add.reduceat(counts, ends[:-1]) / (np.diff(ends) * seconds / len(counts))
    half = T * float(batches.std(ddof=1)) / math.sqrt(BATCHES)
    return Estimate(value, max(value - half, 0.0), value + half)
