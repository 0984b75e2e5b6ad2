"""The table and the plot in README.md, from benchmarks/results/gpu_engine.json.

`python -m benchmarks.readme_page` writes them again; nothing else does.
"""

import json
from typing import Any

from benchmarks.pages import RESULTS, ROOT, Table, filled, markdown
from dualpace.bench.plot import Line, picture

PAGE = ROOT / "README.md"
PICTURE = ROOT / "docs/tpot.svg"
# The prompt whose figures are plotted by rows.
PROMPT = 1024
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


TABLES = (Table(_HEAD[0], "gpu_engine", cells),)


def page(text: str) -> str:
    """The page `text` with the figures of the result file."""
    return filled(text, TABLES)


def report_of() -> dict[str, Any]:
    """The result file."""
    found: dict[str, Any] = json.loads((RESULTS / "gpu_engine.json").read_text(encoding="utf-8"))
    return found


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    PICTURE.write_text(drawn(report_of()), encoding="utf-8")
