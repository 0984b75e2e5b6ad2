"""The figures in docs/side_by_side.md and the plot beside them, from benchmarks/results/side_by_side.json.

`python -m benchmarks.side_page` writes them again; nothing else does.
"""

from collections import defaultdict
from collections.abc import Iterator
from statistics import geometric_mean
from typing import Any

from benchmarks.pages import ROOT, Table, filled, markdown, result
from dualpace.bench.plot import Line, picture

PAGE = ROOT / "docs/side_by_side.md"
PICTURE = ROOT / "docs/side_by_side.svg"
NAME = "side_by_side"
# The load whose latency is plotted by what is beside it.
RATE = 24
_RUNS = (
    "requests/s", "busy threads", "server", "on", "requests", "failed", "TTFT p50, ms", "p99", "TPOT p50, ms", "p99",
    "ITL p99, ms", "tokens/s", "J/token",
)  # fmt: skip
_RATIOS = ("vLLM over DualPace", "TTFT p50", "TTFT p99", "TPOT p50", "TPOT p99", "tokens/s", "J/token")
NAMES = {"dualpace": "DualPace", "vllm": "vLLM"}
_PLACES = {
    ("dualpace", "shared"): "busy cores",
    ("dualpace", "quiet"): "busy cores, frontend on quiet ones",
    ("dualpace", "stopped"): "the same, engine process stopped",
    ("vllm", "shared"): "busy cores",
    ("vllm", "quiet"): "quiet cores",
}


def runs(report: dict[str, Any]) -> str:
    """A line a run. Of a 99th percentile the 95% interval is beside it, where there were requests enough for one."""
    return markdown(_RUNS, map(_run, ordered(report)))


def ordered(report: dict[str, Any]) -> list[dict[str, Any]]:
    """Runs by load, what is beside it, placement and server."""
    return sorted(report["runs"], key=lambda run: (*_load(run), run["server"], run["seed"]))


def _run(run: dict[str, Any]) -> tuple[str, ...]:
    load, busy, placement = run["cell"].split("/")
    return (
        f"{load[:-1]} clients" if load.endswith("c") else load,
        busy,
        NAMES[run["server"]],
        _PLACES[run["server"], placement],
        f"{run['requests']:,}",
        f"{run['requests'] - run['succeeded']:,}",
        *(_ms(run, name, quantile) for name in ("ttft", "tpot") for quantile in ("p50", "p99")),
        _ms(run, "itl", "p99"),
        f"{run['tokens_per_s']['value']:,.0f}",
        f"{run['energy']:.3f}" if run["energy"] else "-",
    )


def _load(run: dict[str, Any]) -> tuple[bool, int, int, str]:
    """By which lines are in order: rates before clients."""
    load, busy, placement = run["cell"].split("/")
    return load.endswith("c"), int(load.removesuffix("c")), int(busy), placement


def _ms(run: dict[str, Any], name: str, quantile: str) -> str:
    if name not in run["latencies"]:
        return "-"
    figure = run["latencies"][name]["quantiles"][quantile]
    interval = quantile == "p99" and figure["low"] is not None
    ends = f" [{1e3 * figure['low']:.1f}, {1e3 * figure['high']:.1f}]" if interval else ""
    return f"{1e3 * figure['value']:.1f}{ends}"


def ratios(report: dict[str, Any]) -> str:
    """A line a cell that both were measured in: how many times DualPace's figure vLLM's is, the mean of all seeds."""
    by_cell: dict[str, dict[int, dict[str, dict[str, Any]]]] = defaultdict(lambda: defaultdict(dict))
    for run in sorted(report["runs"], key=_load):
        by_cell[run["cell"]][run["seed"]][run["server"]] = run
    lines = []
    for cell, seeds in by_cell.items():
        pairs = [(each["vllm"], each["dualpace"]) for each in seeds.values() if len(each) == len(NAMES)]
        if pairs:
            lines.append((cell, *(_ratio(pairs, path) for path in _FIGURES)))
    return markdown(_RATIOS, lines)


_FIGURES = (
    *(("latencies", name, "quantiles", quantile, "value") for name in ("ttft", "tpot") for quantile in ("p50", "p99")),
    ("tokens_per_s", "value"),
    ("energy",),
)


def _ratio(pairs: list[tuple[dict[str, Any], dict[str, Any]]], path: tuple[str, ...]) -> str:
    found = [(_figure(theirs, path), _figure(ours, path)) for theirs, ours in pairs]
    if not all(theirs and ours for theirs, ours in found):
        return "-"
    return f"{geometric_mean([theirs / ours for theirs, ours in found]):.2f}"


def _figure(run: dict[str, Any], path: tuple[str, ...]) -> float:
    """0 where it was not measured."""
    value: Any = run
    for name in path:
        value = value.get(name) if value else None
    return float(value or 0)


def drawn(report: dict[str, Any]) -> str:
    """TPOT's 99th percentile at one load by the threads beside it, as an SVG file."""
    points: dict[tuple[str, str], list[tuple[float, float]]] = defaultdict(list)
    for server, placement, busy, value in _plotted(report):
        points[server, placement].append((busy, value))
    lines = []
    for colour, (key, found) in enumerate(points.items(), 1):
        name = f"{NAMES[key[0]]}, {key[1]}"
        marks = [(x, y, f"{name}: {y:.2f} ms beside {x:.0f} threads") for x, y in found]
        lines.append(Line(name, found, colour, marks=marks))
    return picture(lines, f"busy threads, at {RATE} requests/s", "TPOT p99, ms")


def _plotted(report: dict[str, Any]) -> Iterator[tuple[str, str, float, float]]:
    """Server, placement, busy threads and milliseconds, the mean of all seeds; without threads, cores are all quiet."""
    found: dict[tuple[str, str, int], list[float]] = defaultdict(list)
    for run in sorted(report["runs"], key=_load):
        closed, rate, busy, placement = _load(run)
        if not closed and rate == RATE and placement != "stopped" and "tpot" in run["latencies"]:
            value = run["latencies"]["tpot"]["quantiles"]["p99"]["value"]
            for place in ("quiet", "shared") if not busy and placement == "shared" else (placement,):
                found[run["server"], place, busy].append(1e3 * value)
    for (server, placement, busy), values in sorted(found.items()):
        yield server, placement, busy, geometric_mean(values)


TABLES = (Table(_RUNS[0], NAME, runs), Table(_RATIOS[0], NAME, ratios))


def page(text: str) -> str:
    """The page `text` with the figures of the result file."""
    return filled(text, TABLES)


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    PICTURE.write_text(drawn(result(NAME)), encoding="utf-8")
