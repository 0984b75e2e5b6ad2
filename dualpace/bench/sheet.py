"""A result as CSV, a line a run."""

import csv
import io
from collections.abc import Iterator

from dualpace.bench.result import Figure, Result, Run


def sheet(result: Result) -> str:
    """The runs with a head; a figure's interval is in the columns that end in _low and _high, if there is one."""
    rows = [dict(_row(result.label, run)) for run in result.runs]
    text = io.StringIO()
    writer = csv.DictWriter(text, list(dict.fromkeys(name for row in rows for name in row)), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _row(label: str, run: Run) -> Iterator[tuple[str, object]]:
    load = run.load
    yield "label", label
    for name in ("workload", "rate", "burstiness", "concurrency", "seed", "warm_up"):
        yield name, getattr(load, name)
    for name in ("started", "duration", "requests", "succeeded", "input_tokens", "output_tokens", "cached_tokens"):
        yield name, getattr(run, name)
    yield from _cells("tokens_per_s", run.tokens_per_s)
    yield from _cells("requests_per_s", run.requests_per_s)
    yield from _cells("goodput_per_s", run.goodput)
    yield "joules_per_token", run.energy
    for name, latency in run.latencies.items():
        yield f"{name}_mean_s", latency.mean
        for quantile, figure in latency.quantiles.items():
            yield from _cells(f"{name}_{quantile}_s", figure)
    yield "client_cpu", run.lag.cpu
    yield "client_late_p99_s", max(run.lag.sending_p99, run.lag.seeing_p99)
    yield "client_bottleneck", run.lag.bottleneck


def _cells(name: str, figure: Figure | None) -> Iterator[tuple[str, object]]:
    if figure is not None:
        yield from ((name, figure.value), (f"{name}_low", figure.low), (f"{name}_high", figure.high))
