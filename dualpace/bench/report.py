"""Results as text."""

from collections.abc import Iterable, Iterator, Sequence

from dualpace.bench.compare import Ratio, title
from dualpace.bench.result import QUANTILES, Figure, Run

NAMES = ("ttft", "tpot", "itl", "e2e")
_MS = 1e3


def run_report(run: Run) -> str:
    """All figures of a run, times in milliseconds, each with its 95% interval in brackets."""
    return "".join(f"{line}\n" for line in _run_lines(run))


def _run_lines(run: Run) -> Iterator[str]:
    load = run.load
    warm_up = f" after {load.warm_up:g} s of warm-up" if load.warm_up else ""
    yield f"{title(load)}, seed {load.seed}; {run.duration:.1f} s{warm_up}"
    kinds = f": {', '.join(f'{n} x {kind}' for kind, n in run.errors.items())}" if run.errors else ""
    yield f"  requests    {run.requests}, {run.requests - run.succeeded} failed{kinds}"
    cached = f" ({run.cached_tokens:,} cached)" if run.cached_tokens else ""
    yield f"  tokens      {run.input_tokens:,} in{cached}, {run.output_tokens:,} out"
    yield f"  tokens/s    {bracketed(run.tokens_per_s, 1, 1)}"
    yield f"  requests/s  {bracketed(run.requests_per_s, 1, 2)}"
    if run.goodput and run.good:
        limits = ", ".join(f"{name.upper()} {_MS * limit:g} ms" for name, limit in load.limits if limit is not None)
        yield f"  goodput/s   {bracketed(run.goodput, 1, 2)}; {bracketed(run.good, 100, 1)}% within {limits}"
    if run.energy is not None:
        yield f"  J/token     {run.energy:.3f}"
    lag = run.lag
    yield (f"  client      {lag.cpu:.0%} of a core, late p99 {_MS * lag.sending_p99:.2f} ms in sending, "
           f"{_MS * lag.seeing_p99:.2f} ms in seeing")  # fmt: skip
    if found := {name: run.latencies[name] for name in NAMES if name in run.latencies}:
        rows = [[shown, *(bracketed(each.quantiles[shown], _MS, 2) for each in found.values())] for shown in QUANTILES]
        rows.append(["mean", *(f"{_MS * each.mean:,.2f}" for each in found.values())])
        rows.append(["most", *(f"{_MS * each.most:,.2f}" for each in found.values())])
        yield from (f"  {line}" for line in table(("ms", *map(str.upper, found)), rows))
    yield from (f"  ! {warning}" for warning in run.warnings)


def bracketed(figure: Figure, unit: float, digits: int) -> str:
    """A figure and its interval in `1 / unit` of its unit; a question mark where there is none."""
    value = f"{unit * figure.value:,.{digits}f}"
    if figure.low is None or figure.high is None:
        return f"{value} (?)"
    return f"{value} ({unit * figure.low:,.{digits}f} to {unit * figure.high:,.{digits}f})"


def comparison_report(ratios: Sequence[Ratio], labels: tuple[str, str]) -> str:
    """B beside A, a table a load. A star marks what differs by more than chance would explain."""
    lines = []
    for load in dict.fromkeys(ratio.load for ratio in ratios):
        mine = [ratio for ratio in ratios if ratio.load == load]
        lines.append(f"{load}; {mine[0].pairs} pair{'s' if mine[0].pairs > 1 else ''} of runs")
        rows = [[ratio.figure, *map(_amount, (ratio.figure,) * 2, (ratio.a, ratio.b)), _ratio(ratio)] for ratio in mine]
        lines += [f"  {line}" for line in table(("", *labels, "ratio, 95%"), rows)]
    lines.append("Times are in ms. * differs by more than chance would explain; ? too few requests or pairs to tell.")
    return "".join(f"{line}\n" for line in lines)


def _amount(figure: str, value: float) -> str:
    return f"{_MS * value:,.2f}" if " p" in figure else f"{value:,.2f}"


def _ratio(ratio: Ratio) -> str:
    if ratio.low is None or ratio.high is None:
        return f"{ratio.ratio:.3f} (?)"
    return f"{ratio.ratio:.3f} ({ratio.low:.3f} to {ratio.high:.3f}){' *' if ratio.differs else ''}"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """Lines with the first column to the left and the others to the right."""
    lines = [head, *rows]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for first, *others in lines:
        cells = (f"{cell:>{width}}" for cell, width in zip(others, widths[1:], strict=True))
        yield "  ".join((f"{first:<{widths[0]}}", *cells)).rstrip()
