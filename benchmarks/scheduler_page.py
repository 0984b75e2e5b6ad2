"""The figures in docs/scheduler.md, from benchmarks/results/gpu_scheduler.json.

`python -m benchmarks.scheduler_page` writes them again; nothing else does.
"""

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs/scheduler.md"
RESULTS = ROOT / "benchmarks/results/gpu_scheduler.json"
_STEPS = re.compile(r"\| running \|.*?\n\n", re.DOTALL)
_SAMPLES = re.compile(r"\| sampled \|.*?\n\n", re.DOTALL)


def _table(*rows: Iterable[str]) -> str:
    head, *body = ("| " + " | ".join(row) + " |" for row in rows)
    return "\n".join((head, re.sub(r"[^|]+", " --- ", head), *body)) + "\n\n"


def steps(report: dict[str, Any]) -> str:
    """Microseconds of a step, a line for each number of rows."""
    lines = [
        (
            label,
            f"{figures['us']:.1f}",
            f"{figures.get('us, cold', 0):.1f}",
            f"{report['host step_us'].get(label, 0):.1f}",
        )
        for label, figures in report["step"].items()
    ]
    return _table(
        ("running", "GPU", "nothing in the L2 cache", "one core of the host"),
        *([value if value != "0.0" else "" for value in line] for line in lines),
    )


def samples(report: dict[str, Any]) -> str:
    """Microseconds of sampling, a line for each set of parameters."""
    columns = [
        (rows, spread, figures) for rows in (1, 256) for spread, figures in report[f"sample_us, {rows} rows"].items()
    ]
    return _table(
        ("sampled", *(f"{rows} row{'s' if rows > 1 else ''}, {spread}" for rows, spread, _ in columns)),
        *((label, *(f"{figures[label]:.0f}" for *_, figures in columns)) for label in columns[0][2]),
    )


def page(text: str) -> str:
    """The page `text` with the figures of the result file."""
    report = json.loads(RESULTS.read_text(encoding="utf-8"))
    return _SAMPLES.sub(lambda _: samples(report), _STEPS.sub(lambda _: steps(report), text))


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
