"""What a run has found, as it is kept in a file. Times are in seconds, rates a second, energy in joules."""

from typing import Any

from dualpace.bench.load import Load
from dualpace.frozen import Frozen

# Those of latencies, by the names that results and reports have for them.
QUANTILES = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99, "p99.9": 0.999}

FORMAT = 1


class Figure(Frozen):
    """A figure and its 95% interval, which is missing where there were too few requests to tell."""

    value: float
    low: float | None = None
    high: float | None = None


class Latency(Frozen):
    """One of TTFT, TPOT, ITL and E2E: quantiles by their names, like p99, and the curve of all of them.

    `curve` has the values of the quantiles 0, 0.5%, 1% and so on to 100%.
    """

    count: int
    mean: float
    most: float
    quantiles: dict[str, Figure]
    curve: tuple[float, ...]


class Lag(Frozen):
    """How late the load generator itself was: with sending, with seeing what had come; and its share of a core."""

    sending_p50: float
    sending_p99: float
    seeing_p50: float
    seeing_p99: float
    seeing_most: float
    cpu: float
    bottleneck: bool


class Series(Frozen):
    """What happened over time, `step` seconds apart from the start of the run.

    `ttft`: the median of requests that arrived one after another, with the middle of their times.
    """

    step: float
    tokens: tuple[float, ...]
    in_flight: tuple[float, ...]
    ttft: tuple[tuple[float, float], ...]
    errors: tuple[int, ...]


class Run(Frozen):
    """One run under one load.

    `duration` is the time counted, after the warm-up. `goodput` is of requests that met every limit, and `good` their
    share of all that were counted. `energy` is that of one output token, of all GPUs of this machine.
    """

    load: Load
    started: str
    duration: float
    requests: int
    succeeded: int
    errors: dict[str, int]
    left_out: int
    other_lengths: int
    input_tokens: int
    output_tokens: int
    cached_tokens: int
    pieces: int
    latencies: dict[str, Latency]
    requests_per_s: Figure
    tokens_per_s: Figure
    goodput: Figure | None
    good: Figure | None
    energy: float | None
    lag: Lag
    series: Series
    warnings: tuple[str, ...]


class Result(Frozen):
    """The file: where and of what it was measured, and every run. `server` is what is known of the other side."""

    format: int = FORMAT
    label: str
    version: str
    machine: dict[str, Any]
    server: dict[str, Any]
    runs: tuple[Run, ...]
