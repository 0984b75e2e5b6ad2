"""Tables in the docs that are made of result files: how one is written, and how a page gets its own."""

import json
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks/results"


class Table(NamedTuple):
    """A table that a page knows by the first cell of its head; `make` writes it from the result file `name`."""

    first: str
    name: str
    make: Callable[[dict[str, Any]], str]


def markdown(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table and the empty line after it."""
    return "".join(f"| {' | '.join(row)} |\n" for row in (head, ("---",) * len(head), *rows)) + "\n"


def result(name: str) -> dict[str, Any]:
    """The result file `name`."""
    found: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    return found


def filled(text: str, tables: Iterable[Table]) -> str:
    """The page `text` with the figures of the result files."""
    for first, name, make in tables:
        written = make(result(name))
        text = re.sub(rf"^\| {first} \|.*?\n\n", lambda _, written=written: written, text, flags=re.DOTALL | re.M)
    return text
