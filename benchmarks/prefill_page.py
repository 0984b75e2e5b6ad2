"""The figures of prefill in docs/attention.md, from benchmarks/results/gpu_prefill.json.

`python -m benchmarks.prefill_page` writes them again; nothing else does.
"""

from typing import Any

from benchmarks.pages import ROOT, Table, filled, markdown

PAGE = ROOT / "docs/attention.md"
PROMPT = "32k row, chunk "
_HEAD = (
    "step", "floor", "wgmma", "of the floor", "mma", "FlashInfer", "list", "FlashInfer's plan", "worst error",
)  # fmt: skip


def table(report: dict[str, Any]) -> str:
    """A line a step, in Markdown: microseconds by kernel and share of the floor; a prompt's chunks are one line."""
    results = report["results"]
    chunks = [result for result in results if result["step"].startswith(PROMPT)]
    lines = [_line(result["step"], [result]) for result in results if result not in chunks]
    if chunks:
        lines.append(_line(f"32k row in {len(chunks)} chunks of 2,048", chunks))
    return markdown(_HEAD, lines)


def _line(step: str, results: list[dict[str, Any]]) -> tuple[str, ...]:
    def total(*keys: str) -> float:
        values = results
        for key in keys:
            values = [value[key] for value in values]
        return sum(values)

    floor, ours = total("floor_s"), total("seconds", "wgmma")
    error = max(result["worst_relative_error"]["wgmma"] for result in results)
    return (
        step,
        _us(floor),
        _us(ours),
        f"{floor / ours:.0%}",
        _us(total("seconds", "mma")),
        _us(total("seconds", "flashinfer")),
        _us(total("list_s", "wgmma")),
        _us(total("flashinfer_plan_s")),
        f"{error:.1e}",
    )


def _us(seconds: float) -> str:
    return f"{seconds * 1e6:,.1f}" if seconds < 1e-3 else f"{seconds * 1e6:,.0f}"


TABLES = (Table(_HEAD[0], "gpu_prefill", table),)


def page(text: str) -> str:
    """The page `text` with the figures of the result file."""
    return filled(text, TABLES)


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
