"""The figures in docs/attention.md, from gpu_attention.json, attention_policy.json and persistent_kv.json.

`python -m benchmarks.attention_page` writes them again; nothing else does.
"""

from typing import Any

from benchmarks import policy_tables
from benchmarks.pages import ROOT, Table, filled, markdown

PAGE = ROOT / "docs/attention.md"
OURS = ("workqueue", "split", "flashinfer")
THEIRS = ("flashinfer's decode", "flashinfer's prefill")
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
    return markdown(_HEAD, [_row(*key, results) for key, results in lines.items()])


def _row(layer: str, trace: str, results: dict[str, Any]) -> tuple[str, ...]:
    routes = {route: [result for name, result in results.items() if name.split()[0] == route] for route in OURS}
    ours = [result for found in routes.values() for result in found]
    theirs = [results[route] for route in THEIRS if route in results]
    best = min(ours, key=lambda result: result["attention_s"])
    seconds = best["attention_s"]
    return (
        layer,
        trace,
        _us(best["floor_s"]),
        *(_us(min(result["attention_s"] for result in found)) if found else "-" for found in routes.values()),
        f"{best['kv_bytes'] / seconds / 1e9:,.0f}",
        *(_us(results[route]["attention_s"]) if route in results else "-" for route in THEIRS),
        f"{seconds / min(result['attention_s'] for result in theirs):.0%}" if theirs else "-",
        _us(best["list_s"]),
        _us(min(result["plan_s"] for result in theirs)) if theirs else "-",
        f"{max(result['worst_relative_error'] for result in ours):.1e}",
    )


def _us(seconds: float) -> str:
    return f"{seconds * 1e6:.1f}"


TABLES = (
    Table(_HEAD[0], "gpu_attention", table),
    Table(policy_tables.CHOICES[0], "attention_policy", policy_tables.choices),
    Table(policy_tables.LAYERS[0], "attention_policy", policy_tables.layers),
    Table(policy_tables.PROTOCOL[0], "persistent_kv", policy_tables.protocol),
)


def page(text: str) -> str:
    """The page `text` with the figures of the result files."""
    return filled(text, TABLES)


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
