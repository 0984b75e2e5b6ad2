"""Two results beside each other: how a figure of B relates to that of A, with an interval.

Runs are paired by their load and seed, which are the same requests at the same times. Of several pairs under one load
the interval is that of their ratios, by Student's t on logarithms; of a single pair it is what both runs' own intervals
allow.
"""

import math
import statistics
from collections import defaultdict
from collections.abc import Iterator
from typing import NamedTuple

from dualpace.bench.load import Load
from dualpace.bench.result import Figure, Result, Run

# Student's t at 97.5%, by degrees of freedom from 1 on; beyond, it is the normal distribution's times a little.
_T = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131)
_NORMAL = 1.96
QUANTILES = ("p50", "p90", "p99")


class Ratio(NamedTuple):
    """B over A for one figure under one load, with its 95% interval if there is one, from so many pairs of runs."""

    load: str
    figure: str
    a: float
    b: float
    ratio: float
    low: float | None
    high: float | None
    pairs: int

    @property
    def differs(self) -> bool:
        """Whether the interval leaves out that they are equal."""
        return self.low is not None and self.high is not None and not self.low <= 1 <= self.high


def compare(a: Result, b: Result) -> list[Ratio]:
    """Each figure that both have, by load in the order of A; none if no load and seed is in both."""
    theirs = {_key(run): run for run in b.runs}
    pairs: dict[str, list[tuple[Run, Run]]] = defaultdict(list)
    for run in a.runs:
        if other := theirs.get(_key(run)):
            pairs[title(run.load)].append((run, other))
    return [ratio for load, found in pairs.items() for ratio in _ratios(load, found)]


def title(load: Load) -> str:
    """The load in a few words."""
    clients = "1 client" if load.concurrency == 1 else f"{load.concurrency} clients"
    how = f"{load.rate:g} requests/s" if load.rate else clients if load.concurrency else "as traced"
    beside = load.interference
    others = f", beside {beside.workers} x {beside.kind}" if beside.workers else ""
    return f"{load.workload}, {how}{others}"


def _key(run: Run) -> tuple[object, ...]:
    load = run.load
    return (
        load.workload,
        load.rate,
        load.burstiness,
        load.concurrency,
        load.speed,
        load.seed,
        load.requests,
        load.duration,
    )


def figures(run: Run) -> Iterator[tuple[str, Figure]]:
    """What is compared, by name. Times are in seconds."""
    yield "tokens/s", run.tokens_per_s
    yield "requests/s", run.requests_per_s
    if run.goodput is not None:
        yield "goodput/s", run.goodput
    if run.energy is not None:
        yield "J/token", Figure(value=run.energy)
    for name, latency in run.latencies.items():
        for quantile in QUANTILES:
            yield f"{name.upper()} {quantile}", latency.quantiles[quantile]


def _ratios(load: str, pairs: list[tuple[Run, Run]]) -> Iterator[Ratio]:
    found: dict[str, list[tuple[Figure, Figure]]] = defaultdict(list)
    for a, b in pairs:
        others = dict(figures(b))
        for name, mine in figures(a):
            if name in others and mine.value > 0 and others[name].value > 0:
                found[name].append((mine, others[name]))
    for name, both in found.items():
        logs = [math.log(b.value / a.value) for a, b in both]
        half = _spread(logs) if len(logs) > 1 else _own(*both[0])
        middle = statistics.fmean(logs)
        low, high = (None, None) if half is None else (math.exp(middle - half), math.exp(middle + half))
        mean_a, mean_b = (statistics.geometric_mean([each[side].value for each in both]) for side in (0, 1))
        yield Ratio(load, name, mean_a, mean_b, math.exp(middle), low, high, len(both))


def _spread(logs: list[float]) -> float:
    degrees = len(logs) - 1
    t = _T[degrees - 1] if degrees <= len(_T) else _NORMAL * (1 + (_NORMAL**2 + 1) / (4 * degrees))
    return t * statistics.stdev(logs) / math.sqrt(len(logs))


def _own(a: Figure, b: Figure) -> float | None:
    """Half the interval of the logarithm of b / a, from their own intervals."""
    halves = []
    for figure in (a, b):
        if figure.low is None or figure.high is None or figure.low <= 0:
            return None
        halves.append(math.log(figure.high / figure.low) / 2)
    return math.hypot(*halves)
