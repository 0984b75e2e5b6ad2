"""The tables in README.md and the plot of TPOT, from gpu_engine.json and side_by_side.json in benchmarks/results.

`python -m benchmarks.readme_page` writes them again; nothing else does.
"""

from typing import Any

from benchmarks import side_page
from benchmarks.pages import ROOT, Table, filled, markdown, result
from dualpace.bench.plot import Line, picture

PAGE = ROOT / "README.md"
PICTURE = ROOT / "docs/tpot.svg"
NAME = "gpu_engine"
# The prompt whose figures are plotted by rows.
PROMPT = 1024
# The load and the placement whose latency is shown beside vLLM's.
BESIDE = ("24/0/shared", "24/28/shared")
_BESIDE = ("on the servers' cores", "server", "TTFT p50, ms", "p99, ms", "TPOT p50, ms", "p99, ms", "tokens/s")
_HEAD = ("rows at once", "prompt", "TPOT, ms", "floor, ms", "TPOT / floor", "tokens/s")


def cells(report: dict[str, Any]) -> str:
    """A line a number of rows and length of prompts."""
    return markdown(_HEAD, [_cell(cell) for cell in report["cells"]])


def _cell(cell: dict[str, Any]) -> tuple[str, ...]:
    return (
        str(cell["rows"]),
        f"{cell['prompt']:,}",
        f"{1e3 * cell['tpot_s']:.2f}",
        f"{1e3 * cell['floor_tpot_s']:.2f}",
        f"{cell['tpot_s'] / cell['floor_tpot_s']:.2f}",
        f"{cell['rows'] / cell['tpot_s']:,.0f}",
    )


def drawn(report: dict[str, Any]) -> str:
    """TPOT and its floor by rows, as an SVG file."""
    found = [cell for cell in report["cells"] if cell["prompt"] == PROMPT]

    def line(name: str, key: str, colour: int) -> Line:
        points = [(float(cell["rows"]), 1e3 * cell[key]) for cell in found]
        marks = [(x, y, f"{name}: {y:.2f} ms at {x:.0f} rows") for x, y in points]
        return Line(name, points, colour, marks=marks)

    lines = [line("DualPace", "tpot_s", 1), line("floor of the hardware", "floor_tpot_s", 2)]
    return picture(lines, f"rows at once, prompts of {PROMPT:,} tokens", "TPOT, ms")


def beside(report: dict[str, Any]) -> str:
    """A line a server, while the cores of both are quiet and while other threads keep them busy."""
    runs = [run for run in side_page.ordered(report) if run["cell"] in BESIDE]
    return markdown(_BESIDE, map(_beside, runs))


def _beside(run: dict[str, Any]) -> tuple[str, ...]:
    _, busy, _ = run["cell"].split("/")
    quantiles = (
        f"{1e3 * run['latencies'][name]['quantiles'][quantile]['value']:,.1f}"
        for name in ("ttft", "tpot")
        for quantile in ("p50", "p99")
    )
    cores = f"{busy} busy threads" if int(busy) else "quiet"
    return cores, side_page.NAMES[run["server"]], *quantiles, f"{run['tokens_per_s']['value']:,.0f}"


TABLES = (Table(_HEAD[0], NAME, cells), Table(_BESIDE[0], side_page.NAME, beside))


def page(text: str) -> str:
    """The page `text` with the figures of the result files."""
    return filled(text, TABLES)


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    PICTURE.write_text(drawn(result(NAME)), encoding="utf-8")
