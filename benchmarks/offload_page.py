"""The figures in docs/offload.md, from result files and benchmarks/traces/blocks.json.

`python -m benchmarks.offload_page` writes them again; nothing else does.
"""

from statistics import mean
from typing import Any

from benchmarks.block_trace import chosen, hits
from benchmarks.pages import ROOT, Table, filled, markdown

PAGE = ROOT / "docs/offload.md"
SLOT_SHARES = (1, 1.25, 1.5, 2, 3)
WAYS = {"BulkCopy": "bulk", "VectorCopy": "plain", "copy engine": "copy engine"}


def copies(report: dict[str, Any]) -> str:
    """A line a case, in Markdown: GB/s alone and beside decode, and decode's time over that without copies."""
    head = ("copied", "lists of", "launches", "by", "CTAs", "alone, GB/s", "beside decode, GB/s", "decode takes")
    return markdown(head, map(_line, report["results"]))


def _line(found: dict[str, Any]) -> tuple[str, ...]:
    engine = found["copy"] == "copy engine"
    what = "128 MiB" if engine else f"{found['unit'] >> 10} KiB"
    return (
        f"{what} {'to' if found['leaving'] else 'from'} the host",
        "-" if engine else f"{found['list_bytes'] >> 20} MiB",
        "one" if found["together"] else "one a list",
        WAYS[found["copy"]],
        "-" if engine else str(found["ctas"]),
        f"{found['alone_bytes_per_s'] / 1e9:.1f}",
        f"{found['beside_bytes_per_s'] / 1e9:.1f}",
        f"{found['decode_ratio']:.3f}",
    )


def choices(report: dict[str, Any]) -> str:
    """A line a context and budget, in Markdown: the share of attention kept, mean of the layers, by way of choosing."""
    ways = list(report["results"][0]["kept"])
    rows = [
        (
            f"{found['context']:,}",
            f"{found['share']:.0%}",
            *(f"{mean(found['kept'][way].values()):.1%}" for way in ways),
        )
        for found in report["results"]
    ]
    return markdown(("tokens", "blocks", *ways), rows)


def layers(report: dict[str, Any]) -> str:
    """A line a context and rows, in Markdown: microseconds of a layer's kernels."""
    head = ("slow rows", "tokens", "scores", "floor", "choice, all there", "choice, random")
    columns = ("score_seconds", "score_floor_seconds", "choose_found_seconds", "choose_random_seconds")
    rows = [
        (str(found["rows"]), f"{found['context']:,}", *(f"{found[name] * 1e6:.1f}" for name in columns))
        for found in report["kernels"]
        if "score_seconds" in found
    ]
    return markdown(head, rows)


def kept(recorded: dict[str, Any]) -> str:
    """A line for so many slots a chosen block, in Markdown: the share of what a token chooses that is in them."""
    tokens = chosen(recorded)
    each = max(len(pages) for steps in tokens.values() for pages in steps)
    rows = [
        (f"{share:g}", *(f"{hits(steps, int(share * each)):.1%}" for steps in tokens.values())) for share in SLOT_SHARES
    ]
    return markdown(("slots a block", *(f"layer {layer}" for layer in tokens)), rows)


TABLES = (
    Table("tokens", "block_choice", choices),
    Table("copied", "gpu_transfer", copies),
    Table("slots a block", "../traces/blocks", kept),
    Table("slow rows", "gpu_recall", layers),
)


def page(text: str) -> str:
    """The page `text` with the figures of the result file."""
    return filled(text, TABLES)


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
