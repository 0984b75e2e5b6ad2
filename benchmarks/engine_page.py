"""The figures in docs/gpu_engine.md, from gpu_engine*.json, cpu_free.json, gpu_start.json and gpu_idle.json.

`python -m benchmarks.engine_page` writes them again; nothing else does.
"""

from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.pages import ROOT, Table, filled, markdown
from dualpace.lint.runner import lint_file
from dualpace.plan.plan import ForecastCell

SPECS = ROOT / "benchmarks/specs"
PAGE = ROOT / "docs/gpu_engine.md"
_CELLS = (
    "rows", "prompt", "TPOT's floor, ms", "forecast", "TPOT, ms", "TPOT / floor", "p99", "TTFT's forecast, ms",
    "TTFT, ms", "of the first row", "engine's CPU, s",
)  # fmt: skip
_SMALL = ("rows of 1B", "prompt", "TPOT's floor, ms", "TPOT, ms", "TPOT / floor", "p99", "TTFT, ms")
_PHASES = (
    "engine's process", "requests", "tokens", "TPOT, ms", "p99, ms", "ITL p99, ms", "ITL at most, ms", "its CPU, s",
)  # fmt: skip
_STARTS = (
    "weights", "GB", "imports and a context, s", "weights, s", "capture, s", "first token after, s", "at most, s",
)  # fmt: skip
_STATES = ("idle engine", "GPU, W", "TTFT of 64 tokens, ms")


def cells(report: dict[str, Any]) -> str:
    """A line a number of rows and length of prompts."""
    expected = forecasts(SPECS / report["spec"])
    return markdown(_CELLS, [_cell(cell, expected.get((cell["rows"], cell["prompt"]))) for cell in report["cells"]])


def small(report: dict[str, Any]) -> str:
    """The same of a small model, without a forecast."""
    rows = (_cell(cell, None) for cell in report["cells"])
    return markdown(_SMALL, [(*row[:3], *row[4:7], row[8]) for row in rows])


def forecasts(spec: Path) -> dict[tuple[int, int], ForecastCell]:
    """What the plan of `spec` expects, by rows and context."""
    plan = lint_file(spec, ROOT).plan
    assert plan is not None
    return {(cell.rows, cell.context): cell for cell in plan.forecast.cells}


def _cell(cell: dict[str, Any], forecast: ForecastCell | None) -> tuple[str, ...]:
    return (
        str(cell["rows"]),
        f"{cell['prompt']:,}",
        _ms(cell["floor_tpot_s"]),
        _ms(forecast.seconds) if forecast else "-",
        _ms(cell["tpot_s"]),
        f"{cell['tpot_s'] / cell['floor_tpot_s']:.2f}",
        _ms(cell["tpot_p99_s"]),
        f"{forecast.ttft_seconds * 1e3:,.0f}" if forecast else "-",
        f"{cell['ttft_s'] * 1e3:,.0f}",
        f"{cell['first_ttft_s'] * 1e3:,.0f}",
        f"{cell['engine_cpu_s']:.2f}",
    )


def phases(report: dict[str, Any]) -> str:
    """A line a phase."""
    names = {"quiet": "undisturbed", "stopped": "stopped", "busy": f"beside {report['busy_threads']} busy threads"}
    return markdown(_PHASES, [_phase(names[name], phase) for name, phase in report["phases"].items()])


def _phase(name: str, phase: dict[str, Any]) -> tuple[str, ...]:
    times = (_ms(phase[f"{key}_s"]) for key in ("tpot_p50", "tpot_p99", "itl_p99", "itl_max"))
    return name, str(phase["requests"]), f"{phase['tokens']:,}", *times, f"{phase['engine_cpu_s']:.2f}"


def starts(report: dict[str, Any]) -> str:
    """A line a kind of weights; medians of its starts."""
    return markdown(_STARTS, [_starts(kind["weights"], kind["bytes"], kind["starts"]) for kind in report["kinds"]])


def _starts(weights: str, size: int, each: list[dict[str, float]]) -> tuple[str, ...]:
    stages = zip(("0", "imported_s", "loaded_s"), ("imported_s", "loaded_s", "captured_s"), strict=True)
    took = (median(start[end] - start.get(begin, 0) for start in each) for begin, end in stages)
    after = [start["first_token_s"] for start in each]
    seconds = (f"{value:.1f}" for value in (*took, median(after), max(after)))
    return weights, f"{size / 1e9:.1f}", *seconds


def states(report: dict[str, Any]) -> str:
    """A line a state."""
    return markdown(_STATES, [_state(name, figures) for name, figures in report["states"].items()])


def _state(name: str, figures: dict[str, float]) -> tuple[str, ...]:
    ttft = figures.get("ttft_ms")
    return name, f"{figures['watts']:.0f}", f"{ttft:.1f}" if ttft else "-"


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.2f}"


TABLES = (
    Table(_CELLS[0], "gpu_engine", cells),
    Table(_SMALL[0], "gpu_engine_1b", small),
    Table(_PHASES[0], "cpu_free", phases),
    Table(_STARTS[0], "gpu_start", starts),
    Table(_STATES[0], "gpu_idle", states),
)


def page(text: str) -> str:
    """The page `text` with the figures of the result files."""
    return filled(text, TABLES)


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
