"""The figures in docs/gpu_engine.md, from gpu_engine.json and cpu_free.json.

`python -m benchmarks.engine_page` writes them again; nothing else does.
"""

from pathlib import Path
from typing import Any

from benchmarks.pages import ROOT, Table, filled, markdown
from dualpace.lint.runner import lint_file
from dualpace.plan.plan import ForecastCell

SPECS = ROOT / "benchmarks/specs"
PAGE = ROOT / "docs/gpu_engine.md"
_CELLS = (
    "rows", "prompt", "TPOT's floor, ms", "forecast", "TPOT, ms", "beside its floor", "p99", "TTFT's forecast, ms",
    "TTFT, ms", "of the first row", "engine's CPU, s",
)  # fmt: skip
_PHASES = (
    "engine's process", "requests", "tokens", "TPOT, ms", "p99, ms", "ITL p99, ms", "ITL at most, ms", "its CPU, s",
)  # fmt: skip


def cells(report: dict[str, Any]) -> str:
    """A line a number of rows and length of prompts."""
    expected = forecasts(SPECS / report["spec"])
    return markdown(_CELLS, [_cell(cell, expected.get((cell["rows"], cell["prompt"]))) for cell in report["cells"]])


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


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.2f}"


TABLES = (Table(_CELLS[0], "gpu_engine", cells), Table(_PHASES[0], "cpu_free", phases))


def page(text: str) -> str:
    """The page `text` with the figures of the result files."""
    return filled(text, TABLES)


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
