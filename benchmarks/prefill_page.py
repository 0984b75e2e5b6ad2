"""The figures of prefill in docs/attention.md, from benchmarks/results/gpu_prefill.json.

`python -m benchmarks.prefill_page` writes them again; nothing else does.
"""

import json
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs/attention.md"
RESULTS = ROOT / "benchmarks/results/gpu_prefill.json"
PROMPT = "32k row, chunk "
_TABLE = re.compile(r"\| step \|.*?\n\n", re.DOTALL)


def table(report: dict[str, Any]) -> str:
    """A line a step, in Markdown: microseconds by kernel and share of the floor; a prompt's chunks are one line."""
    results = report["results"]
    chunks = [result for result in results if result["step"].startswith(PROMPT)]
    lines = [_line(result["step"], [result]) for result in results if result not in chunks]
    if chunks:
        lines.append(_line(f"32k row in {len(chunks)} chunks of 2,048", chunks))
    return (
        "\n".join(
            [
                "| step | floor | wgmma | of the floor | mma | FlashInfer | list | FlashInfer's plan | worst error |",
                "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
                *lines,
            ]
        )
        + "\n\n"
    )


def _line(step: str, results: list[dict[str, Any]]) -> str:
    def total(*keys: str) -> float:
        values = results
        for key in keys:
            values = [value[key] for value in values]
        return sum(values)

    floor, ours = total("floor_s"), total("seconds", "wgmma")
    error = max(result["worst_relative_error"]["wgmma"] for result in results)
    return (
        f"| {step} | {_us(floor)} | {_us(ours)} | {floor / ours:.0%} | {_us(total('seconds', 'mma'))} "
        f"| {_us(total('seconds', 'flashinfer'))} | {_us(total('list_s', 'wgmma'))} "
        f"| {_us(total('flashinfer_plan_s'))} | {error:.1e} |"
    )


def _us(seconds: float) -> str:
    return f"{seconds * 1e6:,.1f}" if seconds < 1e-3 else f"{seconds * 1e6:,.0f}"


def page(text: str) -> str:
    """The page `text` with the figures of the result file."""
    report = json.loads(RESULTS.read_text(encoding="utf-8"))
    return _TABLE.sub(lambda _: table(report), text)


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
