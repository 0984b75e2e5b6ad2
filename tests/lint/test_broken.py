"""Two hundred broken specs: each key of the shipped specs, broken in turn, is named at its own line."""

from collections.abc import Iterator
from itertools import cycle
from pathlib import Path
from typing import NamedTuple

import pytest

from dualpace.diagnostic import Severity, Span
from dualpace.lint.runner import lint_document
from dualpace.spec.compose import compose
from dualpace.spec.document import Document, KeyPath, Mapping, Scalar

SPECS = sorted((Path(__file__).parents[2] / "specs").glob("*.yaml"))
VALUES = ("[1]", "{a: 1}", ".nan", "-1", "''", "99999999999999999999", "'\\x01'", "no such thing")


class Broken(NamedTuple):
    """A spec in which only what stands on `line` is wrong, at the key `key`."""

    name: str
    text: str
    line: int
    key: str


def keys(document: Document, path: KeyPath = ()) -> Iterator[KeyPath]:
    node = document.node(path)
    for key in node.entries if isinstance(node, Mapping) else ():
        yield (*path, key)
        yield from keys(document, (*path, key))


def replaced(text: str, span: Span, new: str) -> str:
    lines = text.splitlines(keepends=True)
    line = lines[span.line - 1]
    lines[span.line - 1] = line[: span.col - 1] + new + line[span.end_col - 1 :]
    return "".join(lines)


def broken_specs() -> Iterator[Broken]:
    values = cycle(VALUES)
    for path in SPECS:
        text = path.read_text()
        document = compose(text.encode(), path.name)
        for field in keys(document):
            name, span, node = (
                f"{path.stem}:{'.'.join(map(str, field))}",
                document.key_span(field),
                document.node(field),
            )
            key = str(field[-1])
            misspelt = key[:-2] + key[-1] + key[-2] + "x"
            yield Broken(f"{name}:spelling", replaced(text, span, misspelt), span.line, misspelt)
            if isinstance(node, Scalar):
                value = next(values)
                yield Broken(f"{name}:{value}", replaced(text, node.span, value), span.line, key)
                line = text.splitlines(keepends=True)[span.line - 1]
                again = text.splitlines(keepends=True)
                again.insert(span.line, line)
                yield Broken(f"{name}:twice", "".join(again), span.line + 1, key)


BROKEN = list(broken_specs())


def test_there_are_two_hundred() -> None:
    assert len(BROKEN) >= 200


@pytest.mark.parametrize("broken", BROKEN, ids=lambda broken: broken.name)
def test_the_broken_key_is_named_at_its_line(broken: Broken) -> None:
    document = compose(broken.text.encode(), "a.yaml")
    errors = [d for d in lint_document(document, SPECS[0].parent).diagnostics if d.severity == Severity.ERROR]
    assert broken.line in {d.span.line for d in errors if broken.key in d.message}, errors
