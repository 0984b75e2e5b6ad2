"""The figures in docs/cpu_attention.md, from benchmarks/results/cpu_attention.json and cpu_attention_fp16.json.

`python -m benchmarks.cpu_attention_page` writes them again; nothing else does.
"""

from typing import Any

from benchmarks.pages import ROOT, Table, filled, markdown

PAGE = ROOT / "docs/cpu_attention.md"


def shares(report: dict[str, Any]) -> str:
    """A line a head size, GQA ratio and number of threads, in Markdown: shares are of the rate of reading."""
    head = (f"{report['dtype']}, heads of", "group", "threads", "reading, GB/s", "ours, GB/s", "in order", "scattered")
    return markdown((*head, "torch"), map(_line, report["figures"]))


def _line(found: dict[str, Any]) -> tuple[str, ...]:
    names = ("ours", "scattered", "torch")
    return (
        *(str(found[name]) for name in ("head_dim", "gqa_ratio", "threads")),
        *(f"{found['rates'][name] / 1e9:.1f}" for name in ("read", "ours")),
        *(f"{found['of_read'][name]:.0%}" for name in names),
    )


TABLES = (Table("bf16, heads of", "cpu_attention", shares), Table("fp16, heads of", "cpu_attention_fp16", shares))


def page(text: str) -> str:
    """The page `text` with the figures of the result files."""
    return filled(text, TABLES)


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
