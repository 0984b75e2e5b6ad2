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
_TABLE = re.compile(r"\| layer \|.*?\n\n", re.DOTALL)


def table(report: dict[str, Any]) -> str:
    """A line a layer and trace, in Markdown: microseconds by route, share of the floor's bandwidth, list and error."""
    lines: dict[tuple[str, str], dict[str, Any]] = {}
    for result in report["results"]:
        layer = f"{8 * result['gqa_ratio']}/8 heads of {result['head_dim']}"
        lines.setdefault((layer, result["trace"]), {})[result["route"]] = result
    rows = [
        "| layer | trace | floor | workqueue | of the floor | split | list | worst error |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for (layer, trace), routes in lines.items():
        best = routes["workqueue"]
        floor, seconds = best["floor_s"], best["attention_s"]
        rows.append(
            f"| {layer} | {trace} | {floor * 1e6:.1f} | {seconds * 1e6:.1f} | {floor / seconds:.0%} "
            f"| {routes['split']['attention_s'] * 1e6:.1f} | {best['list_s'] * 1e6:.1f} "
            f"| {best['worst_relative_error']:.1e} |"
        )
    return "\n".join(rows) + "\n\n"


def page(text: str) -> str:
    """The page `text` with the figures of the result file."""
    report = json.loads(RESULTS.read_text(encoding="utf-8"))
    return _TABLE.sub(lambda _: table(report), text)


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
