"""One load after another: the rates or numbers of clients that were named, or as many as it takes to saturate."""

from collections.abc import Callable, Iterator

from dualpace.bench.load import Load
from dualpace.bench.result import Run

# Saturated is a server that completes less than this share of what is asked of it, or gains less than that from twice
# as many clients; or, with limits, one for which fewer requests than this are good.
KEEPS_UP = 0.95
GAIN = 1.05
GOOD = 0.9
NARROWING = 3
MOST = 16


def saturating(first: Load, offer: Callable[[Load], Run]) -> Iterator[Run]:
    """Runs at twice the load each, from `first` on, until one saturates the server; then between the last two.

    In an open loop the load is the rate, and what is between is narrowed down; in a closed one the number of clients.
    """
    load, last = first, None
    for _ in range(MOST):
        run = offer(load)
        yield run
        if saturated(run, last):
            break
        last = run
        load = scaled(load, 2.0)
    if last is None or not first.rate:
        return
    low, high = last.load.rate or 0.0, load.rate or 0.0
    for _ in range(NARROWING if high > low else 0):
        middle = (low * high) ** 0.5
        run = offer(first.model_copy(update={"rate": round(middle, 3)}))
        yield run
        low, high = (low, middle) if saturated(run, None) else (middle, high)


def saturated(run: Run, before: Run | None) -> bool:
    """Whether the server could take no more; `before` is the run at half the load, if there was one."""
    if run.good is not None and run.good.value < GOOD:
        return True
    if run.succeeded < KEEPS_UP * run.requests:
        return True
    if run.load.rate:
        return _falls_behind(run, run.load.rate)
    return before is not None and run.tokens_per_s.value < GAIN * before.tokens_per_s.value


def _falls_behind(run: Run, rate: float) -> bool:
    """Whether answers stay out: the requests in flight grow, once the first answers have had time to come."""
    seconds = min(run.duration, run.requests / rate)
    settled = min(run.latencies["e2e"].quantiles["p90"].value, seconds / 2) if run.latencies else 0.0
    grown = _in_flight(run, seconds) - _in_flight(run, settled)
    return grown > (1 - KEEPS_UP) * rate * (seconds - settled)


def _in_flight(run: Run, seconds: float) -> float:
    """So many seconds after the warm-up."""
    place = int((run.load.warm_up + seconds) / run.series.step)
    return run.series.in_flight[min(place, len(run.series.in_flight) - 1)]


def scaled(load: Load, factor: float) -> Load:
    """The same with that many times the requests."""
    if load.rate:
        return load.model_copy(update={"rate": load.rate * factor})
    return load.model_copy(update={"concurrency": round((load.concurrency or 1) * factor)})
