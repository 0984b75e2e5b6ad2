"""A spec's text as plain values in which every key and value knows its place.

Nothing that a file may hold raises: what cannot be read is among the document's diagnostics.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from dualpace.diagnostic import Diagnostic, Span

# Where libyaml ends a line; the positions that it reports count these.
_LINE_BREAK = re.compile("\r\n|[\n\r\x85\u2028\u2029]")

KeyPath = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class Scalar:
    """A leaf. `text` is what the file says, `value` what YAML 1.2 reads it as."""

    span: Span
    text: str
    value: str | int | float | bool | None


@dataclass(frozen=True, slots=True)
class Sequence:
    """A list of nodes."""

    span: Span
    items: tuple["Node", ...]


@dataclass(frozen=True, slots=True)
class Entry:
    """A mapping's key and value."""

    key: Span
    value: "Node"


@dataclass(frozen=True, slots=True)
class Mapping:
    """Entries in the order of the text. A collection's span ends with its bracket or its last value."""

    span: Span
    entries: dict[str, Entry]


Node = Scalar | Sequence | Mapping


@dataclass(frozen=True, slots=True)
class Document:
    """A spec's text, its root (None if there is none to read) and what was wrong with it as YAML."""

    file: str
    text: str
    root: Node | None
    diagnostics: tuple[Diagnostic, ...]

    def lines(self) -> list[str]:
        """The text's lines as spans number them, without their ends."""
        return split_lines(self.text)

    def data(self) -> object:
        """The root as plain dicts, lists and scalars."""
        return None if self.root is None else _plain(self.root)

    def node(self, path: KeyPath) -> Node | None:
        """The node at `path`, or None."""
        node = self.root
        for step in path:
            if isinstance(node, Mapping) and isinstance(step, str) and step in node.entries:
                node = node.entries[step].value
            elif isinstance(node, Sequence) and isinstance(step, int) and step < len(node.items):
                node = node.items[step]
            else:
                return None
        return node

    def key_span(self, path: KeyPath) -> Span:
        """Where the key at `path` stands, or, if the text has no such key, the nearest one above it."""
        for end in range(len(path), 0, -1):
            parent, step = self.node(path[: end - 1]), path[end - 1]
            if isinstance(parent, Mapping) and isinstance(step, str) and step in parent.entries:
                return parent.entries[step].key
        start = (self.root.span.line, self.root.span.col) if self.root else (1, 1)
        return Span(self.file, *start, *start)

    def span(self, path: KeyPath) -> Span:
        """Where the value at `path` stands if it is a scalar, else as `key_span`: a block has no telling place."""
        node = self.node(path)
        return node.span if isinstance(node, Scalar) and node.text else self.key_span(path)

    def entries(self) -> Iterator[Entry]:
        """Every entry of every mapping."""
        pending = [self.root]
        while pending:
            node = pending.pop()
            if isinstance(node, Mapping):
                yield from node.entries.values()
                pending += [entry.value for entry in node.entries.values()]
            elif isinstance(node, Sequence):
                pending += node.items


def split_lines(text: str) -> list[str]:
    """`text`'s lines as libyaml counts them."""
    return _LINE_BREAK.split(text)


def line_starts(text: str) -> list[int]:
    """Where in `text` its lines start."""
    return [0, *(match.end() for match in _LINE_BREAK.finditer(text))]


def _plain(node: Node) -> object:
    match node:
        case Mapping(entries=entries):
            return {key: _plain(entry.value) for key, entry in entries.items()}
        case Sequence(items=items):
            return [_plain(item) for item in items]
        case Scalar(value=value):
            return value
