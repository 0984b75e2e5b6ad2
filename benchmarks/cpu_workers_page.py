"""The figures in docs/cooperative.md, from benchmarks/results/cpu_workers.json.

`python -m benchmarks.cpu_workers_page` writes them again; nothing else does.
"""

from typing import Any

from benchmarks.pages import ROOT, Table, filled, markdown

PAGE = ROOT / "docs/cooperative.md"


def rates(report: dict[str, Any]) -> str:
    """A line a number of workers, in Markdown: GB/s of KV, and microseconds for an item of a split and the largest."""
    items = report["figures"][0]["item_bytes"]
    head = ("workers", "GB/s", *(f"an item of {size / 2**20:g} MiB, us" for size in items.values()))
    return markdown(head, map(_line, report["figures"]))


def _line(found: dict[str, Any]) -> tuple[str, ...]:
    times = (f"{seconds * 1e6:.0f}" for seconds in found["seconds"].values())
    return (str(found["workers"]), f"{found['rate'] / 1e9:.1f}", *times)


TABLES = (Table("workers", "cpu_workers", rates),)


def page(text: str) -> str:
    """The page `text` with the figures of the result file."""
    return filled(text, TABLES)


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
