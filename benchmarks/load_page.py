"""The figures in docs/bench.md, from benchmarks/results/load_generator.json.

`python -m benchmarks.load_page` writes them again; nothing else does.
"""

from typing import Any

from benchmarks.load_generator import off
from benchmarks.pages import ROOT, Table, filled, markdown

PAGE = ROOT / "docs/bench.md"
_HEAD = (
    "tokens/s", "seen", "TTFT p50, ms", "seen", "p99", "seen", "ITL p50, ms", "seen", "p99", "seen",
    "of what is allowed", "of a core", "late p99, ms",
)  # fmt: skip


def paces(report: dict[str, Any]) -> str:
    """A line a pace: the server's figures, each beside what was seen."""
    return markdown(_HEAD, [_pace(line) for line in report["paces"]])


def _pace(line: dict[str, Any]) -> tuple[str, ...]:
    server, client = line["server"], line["client"]
    times = (
        f"{1e3 * side[name]:.2f}"
        for name in ("ttft p50", "ttft p99", "itl p50", "itl p99")
        for side in (server, client)
    )
    return (
        f"{server['tokens_per_s']:,.0f}",
        f"{client['tokens_per_s']:,.0f}",
        *times,
        f"{off(line):.0%}",
        f"{line['lag']['cpu']:.0%}",
        f"{1e3 * line['lag']['seeing_p99']:.2f}",
    )


TABLES = (Table(_HEAD[0], "load_generator", paces),)


def page(text: str) -> str:
    """The page `text` with the figures of the result file."""
    return filled(text, TABLES)


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
