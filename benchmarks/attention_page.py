"""The figures in docs/attention.md, from benchmarks/results/gpu_attention.json.

`python -m benchmarks.attention_page` writes them again; nothing else does.
"""

import json
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs/attention.md"
RESULTS = ROOT / "benchmarks/results/gpu_attention.json"
OURS = ("workqueue", "split", "flashinfer")
THEIRS = ("flashinfer's decode", "flashinfer's prefill")
_TABLE = re.compile(r"\| layer \|.*?\n\n", re.DOTALL)
_HEAD = (
    "layer", "trace", "floor", "workqueue", "split", "flashinfer", "best, GB/s", "FlashInfer's decode", "its prefill",
    "best beside FlashInfer's better", "list", "FlashInfer's plan", "worst error",
)  # fmt: skip


def table(report: dict[str, Any]) -> str:
    """A line a layer and trace, in Markdown; times in microseconds, and the error of our routes."""
    lines: dict[tuple[str, str], dict[str, Any]] = {}
    for result in report["results"]:
        layer = f"{8 * result['gqa_ratio']}/8 heads of {result['head_dim']}"
        lines.setdefault((layer, result["trace"]), {})[result["route"]] = result
    rows = [_HEAD, ("---",) * len(_HEAD), *(_row(*key, results) for key, results in lines.items())]
    return "".join(f"| {' | '.join(row)} |\n" for row in rows) + "\n"


def _row(layer: str, trace: str, results: dict[str, Any]) -> tuple[str, ...]:
    ours = [results[route] for route in OURS if route in results]
    theirs = [results[route] for route in THEIRS if route in results]
    best = min(ours, key=lambda result: result["attention_s"])
    seconds = best["attention_s"]
    return (
        layer,
        trace,
        _us(best["floor_s"]),
        *(_us(results[route]["attention_s"]) if route in results else "-" for route in OURS),
        f"{best['kv_bytes'] / seconds / 1e9:,.0f}",
        *(_us(results[route]["attention_s"]) if route in results else "-" for route in THEIRS),
        f"{seconds / min(result['attention_s'] for result in theirs):.0%}" if theirs else "-",
        _us(best["list_s"]),
        _us(min(result["plan_s"] for result in theirs)) if theirs else "-",
        f"{max(result['worst_relative_error'] for result in ours):.1e}",
    )


def _us(seconds: float) -> str:
    return f"{seconds * 1e6:.1f}"


def page(text: str) -> str:
    """The page `text` with the figures of the result file."""
    report = json.loads(RESULTS.read_text(encoding="utf-8"))
    return _TABLE.sub(lambda _: table(report), text)


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
