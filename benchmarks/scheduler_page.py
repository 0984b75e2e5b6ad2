"""The figures in docs/scheduler.md, from benchmarks/results/gpu_scheduler.json.

`python -m benchmarks.scheduler_page` writes them again; nothing else does.
"""

from typing import Any

from benchmarks.pages import ROOT, Table, filled, markdown

PAGE = ROOT / "docs/scheduler.md"


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
    return markdown(
        ("running", "GPU", "nothing in the L2 cache", "one core of the host"),
        [[value if value != "0.0" else "" for value in line] for line in lines],
    )


def samples(report: dict[str, Any]) -> str:
    """Microseconds of sampling, a line for each set of parameters."""
    columns = [
        (rows, spread, figures) for rows in (1, 256) for spread, figures in report[f"sample_us, {rows} rows"].items()
    ]
    return markdown(
        ("sampled", *(f"{rows} row{'s' if rows > 1 else ''}, {spread}" for rows, spread, _ in columns)),
        [(label, *(f"{figures[label]:.0f}" for *_, figures in columns)) for label in columns[0][2]],
    )


TABLES = (Table("running", "gpu_scheduler", steps), Table("sampled", "gpu_scheduler", samples))


def page(text: str) -> str:
    """The page `text` with the figures of the result file."""
    return filled(text, TABLES)


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
