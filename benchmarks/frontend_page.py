"""The figures in docs/frontend.md, from benchmarks/results/frontend.json and frontend_libraries.json.

`python -m benchmarks.frontend_page` writes them again; nothing else does.
"""

from collections.abc import Callable
from typing import Any

from benchmarks.pages import ROOT, Table, filled, markdown

PAGE = ROOT / "docs/frontend.md"


def times(first: str, name: str) -> Callable[[dict[str, Any]], str]:
    """Microseconds of each way to do one thing."""
    return lambda report: markdown((first, "us"), [(way, f"{us:,.2f}") for way, us in report[name].items()])


def servers(report: dict[str, Any]) -> str:
    """A line a server."""
    return markdown(
        ("server", "a streamed token, us", "a short request, us"),
        [(name, f"{of['token_us']:.1f}", f"{of['request_us']:.0f}") for name, of in report["servers"].items()],
    )


def bars(report: dict[str, Any]) -> str:
    """A line a bar."""
    stream, short, first = report["streams"][0], report["short requests"][0], report["first token"]
    measured = (
        f"{stream['tokens_per_s']:,} over {stream['streams']} streams",
        f"{stream['p99_ms']:.1f} ms, p50 {stream['p50_ms']:.1f}; {stream['cpu_us_per_token']:.0f} us of CPU a token",
        f"{short['requests_per_s']:,}; {short['cpu_us_per_request']:.0f} us of CPU each",
        f"{first['p99_ms']:.1f} ms, p50 {first['p50_ms']:.1f}, of {first['prompt_tokens']} tokens",
        f"{report['rest']['core']:.1%}",
    )
    met = ("yes" if met else "no" for met in report["bars"].values())
    return markdown(("bar", "measured", "met"), list(zip(report["bars"], measured, met, strict=True)))


def scaling(report: dict[str, Any]) -> str:
    """A line a number of frontends."""
    return markdown(
        ("frontends", "streams", "tokens/s", "latency p50, ms", "p99, ms", "short requests/s"),
        [
            (
                f"{stream['frontends']}", f"{stream['streams']}", f"{stream['tokens_per_s']:,}",
                f"{stream['p50_ms']:.1f}", f"{stream['p99_ms']:.1f}", f"{short['requests_per_s']:,}",
            )
            for stream, short in zip(report["streams"], report["short requests"], strict=True)
        ],
    )  # fmt: skip


TABLES = (
    Table("a chunk of a stream", "frontend_libraries", times("a chunk of a stream", "chunk_us")),
    Table("text of one more token", "frontend_libraries", times("text of one more token", "detokenise_us")),
    Table("1,000 tokens of a text", "frontend_libraries", times("1,000 tokens of a text", "tokenise_us")),
    Table("server", "frontend_libraries", servers),
    Table("bar", "frontend", bars),
    Table("frontends", "frontend", scaling),
)


def page(text: str) -> str:
    """The page `text` with the figures of the result files."""
    return filled(text, TABLES)


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
