"""The figures of a run, from what was recorded."""

import math
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dualpace.bench.load import Limits, Load
from dualpace.bench.record import SLOT_S, Counts, Floats, Record, edges
from dualpace.bench.result import QUANTILES, Figure, Lag, Latency, Run, Series
from dualpace.bench.statistics import Estimate, histogram_quantile, of_histogram, quantile, rate, share
from dualpace.bench.warn import warnings

CURVE = np.linspace(0, 1, 201)
MOST_POINTS = 300
# Requests whose median is a point of a plot over time.
PART = 8
# A load generator that uses more of its core, or is later than this at the 99th percentile, shapes what it measures.
BUSY = 0.9
LATE_S = 1e-3
LATE_SHARE = 0.1


class Ending(NamedTuple):
    """How a run came to its end: because its time was up or not, and what it used of a core and of energy.

    `left_out` requests of a file were too long for the server.
    """

    by_time: bool
    cpu: float
    joules: float | None
    left_out: int = 0


class _Window(NamedTuple):
    """The slots that are counted, and their seconds."""

    first: int
    last: int
    seconds: float

    @property
    def begin(self) -> float:
        return self.first * SLOT_S

    def holds(self, times: Floats) -> NDArray[np.bool_]:
        """Which times are within, the last answer's among them."""
        inside: NDArray[np.bool_] = (times >= self.begin) & (times <= self.begin + self.seconds + 1e-9)
        return inside


def run_of(load: Load, started: str, record: Record, ending: Ending) -> Run:
    """All that is told of a run."""
    columns = record.columns()
    window = _window(load, columns, ending)
    counted = {name: column[columns["intended"] >= load.warm_up] for name, column in columns.items()}
    ok = {name: column[counted["error"] == 0] for name, column in counted.items()}
    latencies = _latencies(ok, record.gaps)
    pieces = np.zeros(window.last - window.first, np.int64)
    found = record.pieces_by_slot[window.first : window.last]
    pieces[: len(found)] = found
    per_piece = ok["tokens"].sum() / max(ok["pieces"].sum(), 1)
    whole = columns["end"][(columns["error"] == 0) & window.holds(columns["end"])]
    good = _good(counted, load.limits)
    tokens = float(pieces.sum() * per_piece)
    run = Run(
        load=load,
        started=started,
        duration=window.seconds,
        requests=len(counted["error"]),
        succeeded=len(ok["error"]),
        errors={kind: int(n) for i, kind in enumerate(record.errors, 1) if (n := (counted["error"] == i).sum())},
        left_out=ending.left_out,
        other_lengths=int((ok["tokens"] != ok["asked"]).sum()),
        input_tokens=int(ok["prompt"].sum()),
        output_tokens=int(ok["tokens"].sum()),
        cached_tokens=int(ok["cached"].sum()),
        pieces=int(ok["pieces"].sum()),
        latencies=latencies,
        requests_per_s=figure(rate(_by_slot(whole, window), window.seconds)),
        tokens_per_s=figure(rate(pieces, window.seconds).times(per_piece)),
        goodput=None if good is None else figure(share(good).times(len(good) / window.seconds)),
        good=None if good is None else figure(share(good)),
        energy=ending.joules / tokens if ending.joules and tokens else None,
        lag=_lag(record, ending.cpu, latencies),
        series=_series(columns, record.pieces_by_slot * per_piece),
        warnings=(),
    )
    return run.model_copy(update={"warnings": warnings(run)})


def _latencies(ok: Mapping[str, Floats], gaps: Counts) -> dict[str, Latency]:
    values = _times(ok)
    values["tpot"] = values["tpot"][ok["tokens"] > 1]
    found = {name: latency(each) for name, each in values.items() if len(each)}
    if gaps.any():
        found["itl"] = gap_latency(gaps)
    return found


def _good(counted: Mapping[str, Floats], limits: Limits) -> NDArray[np.bool_] | None:
    """Which requests were good, if there are limits: a failure never is."""
    if limits == Limits() or not len(counted["error"]):
        return None
    times = _times(counted)
    good: NDArray[np.bool_] = counted["error"] == 0
    for name, limit in limits:
        if limit is not None:
            good &= times[name] <= limit
    return good


def _times(requests: Mapping[str, Floats]) -> dict[str, Floats]:
    """What limits are about, of each request; TPOT is 0 where there is one token."""
    return {
        "ttft": requests["first"] - requests["intended"],
        "tpot": (requests["last"] - requests["first"]) / np.maximum(requests["tokens"] - 1, 1),
        "e2e": requests["end"] - requests["intended"],
    }


def latency(values: Floats) -> Latency:
    """Of at least one value, in order of time."""
    return Latency(
        count=len(values),
        mean=float(values.mean()),
        most=float(values.max()),
        quantiles={name: figure(quantile(values, p)) for name, p in QUANTILES.items()},
        curve=tuple(map(float, np.quantile(values, CURVE))),
    )


def gap_latency(counts: Counts) -> Latency:
    """Of at least one gap, counted by block and bin."""
    total = counts.sum(0)
    lower = edges()
    middles = (lower[:-1] + lower[1:]) / 2
    return Latency(
        count=int(total.sum()),
        mean=float((total * middles).sum() / total.sum()),
        most=of_histogram(total, 1.0),
        quantiles={name: figure(histogram_quantile(counts, p)) for name, p in QUANTILES.items()},
        curve=tuple(of_histogram(total, p) for p in CURVE),
    )


def figure(estimate: Estimate) -> Figure:
    """As it is kept in a file."""
    return Figure(value=estimate.value, low=estimate.low, high=estimate.high)


def _lag(record: Record, cpu: float, latencies: Mapping[str, Latency]) -> Lag:
    sent, seen = record.sent_late.counts, record.seen_late.counts
    late = max(of_histogram(sent, 0.99), of_histogram(seen, 0.99))
    felt = min(
        (latencies[name].quantiles["p50"].value for name in ("ttft", "itl") if name in latencies), default=math.inf
    )
    return Lag(
        sending_p50=of_histogram(sent, 0.5),
        sending_p99=of_histogram(sent, 0.99),
        seeing_p50=of_histogram(seen, 0.5),
        seeing_p99=of_histogram(seen, 0.99),
        seeing_most=of_histogram(seen, 1.0),
        cpu=cpu,
        bottleneck=cpu > BUSY or late > max(LATE_S, LATE_SHARE * felt),
    )


def _window(load: Load, columns: Mapping[str, Floats], ending: Ending) -> _Window:
    """From the end of the warm-up to that of the run: when its time was up, or else the last answer ended."""
    first = int(np.ceil(load.warm_up / SLOT_S - 1e-9))
    if ending.by_time and load.duration:
        last = max(int(load.duration / SLOT_S + 1e-9), first + 1)
        return _Window(first, last, (last - first) * SLOT_S)
    end = float(max(columns["end"], default=0.0))
    last = max(int(end / SLOT_S) + 1, first + 1)
    return _Window(first, last, max(end - first * SLOT_S, SLOT_S))


def _by_slot(times: Floats, window: _Window) -> Counts:
    slots = np.minimum((times / SLOT_S).astype(np.int64), window.last - 1) - window.first
    return np.bincount(slots, minlength=window.last - window.first)


def _series(columns: Mapping[str, Floats], tokens: Floats) -> Series:
    end = float(max(columns["end"], default=0.0))
    slots = int(end / SLOT_S) + 1
    group = -(-slots // MOST_POINTS)
    step, points = group * SLOT_S, -(-slots // group)
    padded = np.zeros(points * group)
    padded[: min(len(tokens), len(padded))] = tokens[: len(padded)]
    grid = (np.arange(points) + 0.5) * step
    begun = np.searchsorted(np.sort(columns["intended"]), grid)
    ended = np.searchsorted(np.sort(columns["end"]), grid)
    ok = columns["error"] == 0
    intended = columns["intended"][ok]
    parts = min(max(len(intended) // PART, 1), MOST_POINTS) if len(intended) else 0
    ttft = columns["first"][ok] - intended
    medians = [
        (float(np.median(intended[mine])), float(np.median(ttft[mine])))
        for mine in (np.array_split(np.arange(len(intended)), parts) if parts else ())
    ]
    failed = np.bincount((columns["end"][~ok] / step).astype(int), minlength=points)
    return Series(
        step=step,
        tokens=tuple(float(n) for n in padded.reshape(points, group).sum(1) / step),
        in_flight=tuple(float(n) for n in begun - ended),
        ttft=tuple(medians),
        errors=tuple(int(n) for n in failed),
    )
