"""YAML bytes -> Document.

PyYAML's parser gives events (libyaml's where it is built in); scalars are resolved by YAML 1.2's core schema, so `no`
is a string and `0555567` a number. What a spec has no use for and what surprises readers is refused with a remedy:
duplicate and merge keys, tags, further documents. Collects what it can and raises nothing for any content.
"""

import re
from pathlib import Path
from typing import Any, NoReturn

import yaml

from dualpace.diagnostic import Diagnostic, Severity, Span, ordered
from dualpace.spec.document import Document, Entry, Mapping, Node, Scalar, Sequence, split_lines
from dualpace.spec.scalars import resolve

MAX_BYTES = 1 << 18
MAX_DEPTH = 16
MAX_NODES = 4096  # what an alias stands for counts each time

_PARSER = yaml.CLoader if yaml.__with_libyaml__ else yaml.Loader
_NOT_YAML = yaml.reader.Reader.NON_PRINTABLE
_BYTE_ORDER_MARK = re.compile("\ufeff")


def read_document(path: Path) -> Document:
    """The document at `path`, named as given. Raises OSError."""
    with path.open("rb") as file:
        return compose(file.read(MAX_BYTES + 1), path.as_posix())


def compose(data: bytes, file: str) -> Document:
    """The document in `data`; `file` is its name in diagnostics."""
    text = data.decode("utf-8", errors="replace")
    composer = _Composer(file, text)
    try:
        composer.check_encoding(data)
        root = composer.compose()
    except _StopError:
        root = None
    except yaml.MarkedYAMLError as error:
        composer.report_syntax(error)
        root = None
    return Document(file, text, root, ordered(composer.diagnostics))


class _StopError(Exception):
    """Nothing further can be read; the reason is among the diagnostics."""


class _Composer:
    """Nodes from one text's events. `diagnostics` grows as they are read."""

    def __init__(self, file: str, text: str) -> None:
        self.diagnostics: list[Diagnostic] = []
        self._file = file
        self._text = text
        self._anchors: dict[str, tuple[Node, int]] = {}
        self._nodes = 0
        self._end = (1, 1)
        lines = split_lines(text)
        self._text_end = (len(lines), len(lines[-1]) + 1)

    def check_encoding(self, data: bytes) -> None:
        """Stop at bytes that are not the text of a YAML file."""
        start = Span(self._file, 1, 1, 1, 1)
        if len(data) > MAX_BYTES:
            self._stop(start, "DP008", "too-large", f"the file has more than {MAX_BYTES} bytes", "is it a spec?")
        try:
            data.decode("utf-8")
        except UnicodeDecodeError as error:
            span = self._span_after(data[: error.start].decode("utf-8"))
            byte = f"byte {error.start} (0x{data[error.start]:02x}) is not UTF-8"
            self._stop(span, "DP001", "encoding", byte, "save the file as UTF-8")
        if strange := _NOT_YAML.search(self._text) or _BYTE_ORDER_MARK.search(self._text):
            code = ord(strange[0])
            what = "a byte-order mark" if code == 0xFEFF else f"the control or private character U+{code:04X}"
            span = self._span_after(self._text[: strange.start()])
            self._stop(span, "DP001", "encoding", f"{what} stands here", "remove it: specs are plain UTF-8 text")

    def compose(self) -> Node | None:
        """The root of the one document. Raises yaml.MarkedYAMLError and _StopError."""
        self._parser = _PARSER(self._text)
        self._parser.get_event()
        if self._parser.check_event(yaml.StreamEndEvent):
            self._stop(Span(self._file, 1, 1, 1, 1), "DP007", "empty", "the file holds no spec", "begin with `name:`")
        self._parser.get_event()
        root = self._node(0)
        self._parser.get_event()
        if not self._parser.check_event(yaml.StreamEndEvent):
            span = self._span(self._parser.get_event())
            self._report(span, "DP006", "documents", "a second document begins here", "keep one spec in a file")
        return root

    def report_syntax(self, error: yaml.MarkedYAMLError) -> None:
        """Say where and why the parser gave up."""
        mark = error.problem_mark or error.context_mark
        line, col = min((mark.line + 1, mark.column + 1), self._text_end) if mark else (1, 1)
        text = split_lines(self._text)[line - 1]
        span = Span(self._file, line, col, line, col + 1)
        problem = " ".join(part for part in (error.context, error.problem) if part)
        if "\t" in text[:col]:
            self._report(span, "DP002", "syntax", "a tab stands where YAML allows spaces only", "indent with spaces")
        else:
            help_ = "check indentation, quotes and brackets here and just above"
            self._report(span, "DP002", "syntax", f"not YAML: {problem}", help_)

    def _node(self, depth: int) -> Node:
        event: Any = self._parser.get_event()
        span = self._span(event)
        self._end = (span.end_line, span.end_col)
        if isinstance(event, yaml.AliasEvent):
            return self._alias(event, span)
        before = self._nodes
        self._count(1, span)
        if depth > MAX_DEPTH:
            self._stop(
                span, "DP008", "too-large", f"this is nested more than {MAX_DEPTH} deep", "a spec needs 4 levels"
            )
        if event.tag is not None:
            self._report(
                span, "DP009", "tag", f"the tag {event.tag} has no meaning in a spec", "remove it, or quote the value"
            )
        node: Node
        if isinstance(event, yaml.ScalarEvent):
            node = self._scalar(event, span)
        elif isinstance(event, yaml.SequenceStartEvent):
            node = self._sequence(span, depth)
        else:
            node = self._mapping(span, depth)
        if event.anchor is not None:
            self._anchors[event.anchor] = (node, self._nodes - before)
        return node

    def _alias(self, event: yaml.AliasEvent, span: Span) -> Node:
        if event.anchor not in self._anchors:
            message = f"*{event.anchor} names no anchor that ends before it"
            self._stop(span, "DP002", "syntax", message, "define the anchor above, or write the value out")
        node, size = self._anchors[event.anchor]
        self._count(size, span)
        return node

    def _scalar(self, event: yaml.ScalarEvent, span: Span) -> Scalar:
        return Scalar(span, event.value, resolve(event.value) if event.implicit[0] else event.value)

    def _sequence(self, span: Span, depth: int) -> Sequence:
        items = []
        while not self._parser.check_event(yaml.SequenceEndEvent):
            items.append(self._node(depth + 1))
        return Sequence(self._whole(span), tuple(items))

    def _mapping(self, span: Span, depth: int) -> Mapping:
        entries: dict[str, Entry] = {}
        while not self._parser.check_event(yaml.MappingEndEvent):
            key = self._node(depth + 1)
            value = self._node(depth + 1)
            if not (isinstance(key, Scalar) and isinstance(key.value, str)):
                what = f"the key {key.text or 'null'}" if isinstance(key, Scalar) else "a list or mapping as key"
                self._report(key.span, "DP005", "key-type", f"{what} is not text", "write the field's name")
            elif key.value == "<<":
                help_ = "write the fields out; an alias may stand for a whole value"
                self._report(key.span, "DP004", "merge-key", "merge keys are not part of YAML 1.2", help_)
            elif key.value in entries:
                first = entries[key.value].key
                message = f"{key.value} is already given on line {first.line}"
                self._report(key.span, "DP003", "duplicate-key", message, "keep one of the two")
            else:
                entries[key.value] = Entry(key.span, value)
        return Mapping(self._whole(span), entries)

    def _whole(self, start: Span) -> Span:
        """The extent of the collection that begins with `start` and whose end is the next event."""
        event = self._parser.get_event()
        end = self._span(event)
        if (end.line, end.col) < (end.end_line, end.end_col):  # a bracket; a block ends where its last value does
            self._end = (end.end_line, end.end_col)
        return Span(self._file, start.line, start.col, *self._end)

    def _count(self, nodes: int, span: Span) -> None:
        self._nodes += nodes
        if self._nodes > MAX_NODES:
            message = f"the spec has more than {MAX_NODES} values, aliases written out"
            self._stop(span, "DP008", "too-large", message, "a spec needs under a hundred")

    def _span(self, event: Any) -> Span:
        # What is empty at the end of a text stands, for the parser, on a line after it.
        marks = ((mark.line + 1, mark.column + 1) for mark in (event.start_mark, event.end_mark))
        start, end = (min(mark, self._text_end) for mark in marks)
        return Span(self._file, *start, *end)

    def _span_after(self, text: str) -> Span:
        lines = split_lines(text)
        line, col = len(lines), len(lines[-1]) + 1
        return Span(self._file, line, col, line, col + 1)

    def _report(self, span: Span, id_: str, slug: str, message: str, help_: str) -> None:
        self.diagnostics.append(Diagnostic(id_, slug, Severity.ERROR, message, help_, span))

    def _stop(self, span: Span, id_: str, slug: str, message: str, help_: str) -> NoReturn:
        self._report(span, id_, slug, message, help_)
        raise _StopError
