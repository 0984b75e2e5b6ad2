"""A result as one HTML page that needs nothing else: figures, plots, and what a reader must know."""

from collections.abc import Iterator
from itertools import groupby
from statistics import fmean
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from dualpace.bench.compare import title
from dualpace.bench.plot import COLOURS, DARK, STYLE, Line, digits, number, plot
from dualpace.bench.report import NAMES
from dualpace.bench.result import QUANTILES, Figure, Result, Run

_MS = 1e3
_SPELT = {"ttft": "Time to first token", "tpot": "Time per output token", "itl": "Inter-token latency",
          "e2e": "End to end"}  # fmt: skip


def page(result: Result) -> str:
    """The whole page."""
    environment = Environment(
        loader=PackageLoader("dualpace.bench", "."), undefined=StrictUndefined, autoescape=True, trim_blocks=True,
        lstrip_blocks=True,
    )  # fmt: skip
    return environment.get_template("report.html.j2").render(
        result=result,
        colours=Markup(COLOURS),
        dark=Markup(DARK),
        style=Markup(STYLE),
        sweeps=list(_sweeps(result)),
        runs=[_run(run) for run in result.runs],
        facts={"Load generator's machine": result.machine, "Server": result.server},
    )


def _run(run: Run) -> dict[str, Any]:
    found = {name: run.latencies[name] for name in NAMES if name in run.latencies}
    return {
        "run": run,
        "title": title(run.load),
        "tiles": list(_tiles(run)),
        "names": [(name.upper(), _SPELT[name]) for name in found],
        "rows": [(shown, [_cell(each.quantiles[shown], _MS) for each in found.values()]) for shown in QUANTILES]
        + [("mean", [(digits(_MS * each.mean), "") for each in found.values()])]
        + [("most", [(digits(_MS * each.most), "") for each in found.values()])],
        "spreads": [(_SPELT[name], Markup(_spread(run, name))) for name in found],
        "courses": [(name, Markup(drawn)) for name, drawn in _courses(run) if drawn],
    }


def _tiles(run: Run) -> Iterator[tuple[str, str, str]]:
    """Name, value, and what stands below it."""
    yield "Output tokens a second", *_cell(run.tokens_per_s, 1)
    yield "Requests a second", *_cell(run.requests_per_s, 1)
    if run.goodput and run.good:
        yield "Goodput, requests a second", digits(run.goodput.value), f"{run.good.value:.1%} of requests within limits"
    if "ttft" in run.latencies:
        ttft = run.latencies["ttft"].quantiles
        yield "TTFT, median", f"{digits(_MS * ttft['p50'].value)} ms", f"p99 {digits(_MS * ttft['p99'].value)} ms"
    if "tpot" in run.latencies:
        tpot = run.latencies["tpot"].quantiles
        yield "TPOT, median", f"{digits(_MS * tpot['p50'].value)} ms", f"p99 {digits(_MS * tpot['p99'].value)} ms"
    if run.energy is not None:
        yield "Energy a token", f"{run.energy:.3g} J", "of all GPUs"
    kinds = ", ".join(f"{count} × {kind}" for kind, count in run.errors.items())
    yield "Failed", str(run.requests - run.succeeded), kinds or f"of {run.requests:,} requests"


def _cell(figure: Figure, unit: float) -> tuple[str, str]:
    """The value and its interval."""
    if figure.low is None or figure.high is None:
        return digits(unit * figure.value), "too few to tell"
    return digits(unit * figure.value), f"{digits(unit * figure.low)} – {digits(unit * figure.high)}"


def _spread(run: Run, name: str) -> str:
    """The share of requests, or of gaps, that took no longer."""
    latency = run.latencies[name]
    last = len(latency.curve) - 1
    points = [(_MS * value, 100 * i / last) for i, value in enumerate(latency.curve)]
    marks = [
        (_MS * figure.value, float(shown[1:]), f"{shown}: {digits(_MS * figure.value)} ms")
        for shown, figure in latency.quantiles.items()
    ]
    return plot([Line(name, points, marks=marks)], "ms", "% took no longer", log_x=True, most_y=100.0)


def _courses(run: Run) -> Iterator[tuple[str, str]]:
    series = run.series
    times = [series.step * (i + 0.5) for i in range(len(series.tokens))]
    yield (
        "Output tokens a second",
        plot([Line("tokens/s", list(zip(times, series.tokens, strict=True)))], "s", "tokens/s"),
    )
    yield (
        "Requests in flight",
        plot([Line("in flight", list(zip(times, series.in_flight, strict=True)), 2)], "s", "requests"),
    )
    ttft = [(at, _MS * value) for at, value in series.ttft]
    yield "Median TTFT by time of arrival, ms", plot([Line("TTFT", ttft, 3)], "s", "ms")
    if any(series.errors):
        yield "Failures", plot([Line("failures", list(zip(times, series.errors, strict=True)), 4)], "s", "failures")


def _sweeps(result: Result) -> Iterator[tuple[str, list[tuple[str, list[str], Markup]]]]:
    """Loads that differ in their rate or number of clients, over which figures are plotted."""
    runs = sorted((run for run in result.runs if _amount(run)), key=lambda run: (run.load.rate is None, _amount(run)))
    for closed, group in groupby(runs, key=lambda run: run.load.rate is None):
        found = list(group)
        if len({_amount(run) for run in found}) > 1:
            x_name = "clients" if closed else "requests offered a second"
            yield x_name, list(_sweep(found, x_name))


def _amount(run: Run) -> float:
    return run.load.rate or run.load.concurrency or 0.0


def _sweep(runs: list[Run], x_name: str) -> Iterator[tuple[str, list[str], Markup]]:
    """Plots of a sweep: what is shown, the names of its lines, the plot."""
    answered = [run for run in runs if run.latencies]
    lines = [_over("tokens/s", [(run, run.tokens_per_s) for run in runs], 1, 1)]
    yield "Output tokens a second", [], Markup(plot(lines, x_name, "tokens/s"))
    if all(run.goodput for run in runs):
        good = [(run, run.goodput) for run in runs if run.goodput]
        lines = [_over("completed", [(run, run.requests_per_s) for run in runs], 1, 1), _over("good", good, 2, 1)]
        yield "Requests a second", ["completed", "good"], Markup(plot(lines, x_name, "requests/s"))
    for name in ("ttft", "tpot"):
        lines = [
            _over(
                shown,
                [(run, run.latencies[name].quantiles[shown]) for run in answered if name in run.latencies],
                i,
                _MS,
            )
            for i, shown in enumerate(("p50", "p99"), 1)
        ]
        yield f"{name.upper()}, ms", ["p50", "p99"], Markup(plot(lines, x_name, "ms"))


def _over(name: str, figures: list[tuple[Run, Figure]], colour: int, unit: float) -> Line:
    """One figure by load, the mean of runs that repeat a load, and of the ends of their intervals."""
    points, band = [], []
    for x, group in groupby(figures, key=lambda found: _amount(found[0])):
        mine = [figure for _, figure in group]
        points.append((x, unit * fmean(figure.value for figure in mine)))
        lows = [figure.low for figure in mine if figure.low is not None]
        highs = [figure.high for figure in mine if figure.high is not None]
        if lows and len(lows) == len(highs) == len(mine):
            band.append((x, unit * fmean(lows), unit * fmean(highs)))
    marks = [(x, y, f"{name}: {digits(y)} at {number(x)}") for x, y in points]
    return Line(name, points, colour, band, marks)
