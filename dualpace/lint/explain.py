"""Findings explained by the specs that hold the rules to their word: the folders in `examples/`.

`ID-slug/bad.yaml` has the finding and `bad.txt` is its report; `good.yaml` is the same spec without it.
"""

from difflib import unified_diff
from importlib.resources import files
from textwrap import indent

from dualpace.lint.catalogue import CATALOGUE, Entry

__all__ = ["CATALOGUE", "explanation", "listing", "page"]

TOPICS = {
    "DP0": "YAML",
    "DP1": "Fields",
    "DP2": "Model",
    "DP3": "Attention and scheduling",
    "DP4": "NIC",
    "DP5": "Offload",
    "DP6": "Target",
    "DP7": "Serving",
    "DP8": "Plan and memory",
    "DP9": "Allowances",
}


def listing() -> str:
    """One line an entry of the catalogue."""
    width = max(len(entry.slug) for entry in CATALOGUE)
    return "".join(f"{e.id}  {e.severity!s:<7}  {e.slug:<{width}}  {e.summary}\n" for e in CATALOGUE)


def explanation(entry: Entry) -> str:
    """What `entry` means, with its bad spec, what a lint says of it, and its good spec."""
    bad, report, good = _example(entry)
    return (
        f"{_title(entry)}\n{entry.summary}\n\nBad:\n\n{indent(bad, '    ')}\n"
        f"Lint says:\n\n{indent(report, '    ')}\nGood:\n\n{indent(good, '    ')}"
    )


def page() -> str:
    """The catalogue as a Markdown page: what differs between each bad and good spec, and the bad one's report."""
    parts = [
        "# What a lint finds\n\nWritten by `dualpace rules --markdown`. Each change makes the example clean.\n",
    ]
    for prefix, topic in TOPICS.items():
        parts.append(f"\n## {topic}\n")
        parts += [_section(entry) for entry in CATALOGUE if entry.id.startswith(prefix)]
    return "".join(parts)


def _section(entry: Entry) -> str:
    bad, report, good = _example(entry)
    lines = list(unified_diff(bad.splitlines(), good.splitlines(), n=1, lineterm=""))[2:]
    change = "".join(f"{line}\n" for line in lines if not line.startswith("@@"))
    return f"\n### {_title(entry)}\n\n{entry.summary}\n\n```diff\n{change}```\n\n```text\n{report}```\n"


def _title(entry: Entry) -> str:
    return f"{entry.id} {entry.slug} ({entry.severity})"


def _example(entry: Entry) -> tuple[str, str, str]:
    folder = files("dualpace.lint") / "examples" / f"{entry.id}-{entry.slug}"
    bad, report, good = ((folder / name).read_bytes() for name in ("bad.yaml", "bad.txt", "good.yaml"))
    return _shown(bad), report.decode(), _shown(good)


def _shown(spec: bytes) -> str:
    """A spec as it can be shown: bytes that are no text, and characters that a terminal obeys, as `?`."""
    text = spec.decode("utf-8", errors="replace")
    return "".join(c if c.isprintable() or c == "\n" else "?" for c in text)
