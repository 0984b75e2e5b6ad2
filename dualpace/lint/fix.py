"""Remedies as edits of a spec's text that keep its comments and layout; nothing where that is not sure to work."""

from collections.abc import Iterable
from itertools import pairwise

from dualpace.diagnostic import Edit, Span
from dualpace.spec.document import Document, Entry, KeyPath, Mapping, line_starts


def removal(document: Document, path: KeyPath) -> tuple[Edit, ...]:
    """The edit that takes out the key at `path` with its value, and its section if that has nothing else."""
    parent, key = document.node(path[:-1]), path[-1]
    if not (isinstance(parent, Mapping) and isinstance(key, str) and key in parent.entries):
        return ()
    if len(parent.entries) == 1 and len(path) > 1:
        return removal(document, path[:-1])  # an empty section would be a fault of its own
    entry = parent.entries[key]
    return (Edit(_extent(document, parent, entry), ""),) if _stands_after_its_key(parent, entry) else ()


def comment_removal(document: Document, comment: Span) -> Edit:
    """The edit that takes out `comment`, and the line if it has nothing else."""
    before = document.lines()[comment.line - 1][: comment.col - 1]
    if not before.strip():
        return Edit(Span(document.file, comment.line, 1, comment.line + 1, 1), "")
    start = len(before.rstrip()) + 1
    return Edit(Span(document.file, comment.line, start, comment.end_line, comment.end_col), "")


def fixed(text: str, changes: Iterable[Edit]) -> str:
    """`text` after `changes`; of two that touch the same text only the first is made."""
    starts = line_starts(text)

    def offset(line: int, col: int) -> int:
        return min(starts[line - 1] + col - 1, len(text)) if line <= len(starts) else len(text)

    done, pieces = 0, []
    for edit in sorted(changes, key=lambda edit: edit.span):
        start, end = offset(edit.span.line, edit.span.col), offset(edit.span.end_line, edit.span.end_col)
        if start >= done:
            pieces += [text[done:start], edit.text]
            done = end
    return "".join([*pieces, text[done:]])


def _stands_after_its_key(parent: Mapping, entry: Entry) -> bool:
    """Whether the value is written at the entry, not at an anchor elsewhere."""
    following = [other.key for other in parent.entries.values() if other.key > entry.key]
    value = entry.value.span
    return entry.key < value and all(value < key for key in following)


def _extent(document: Document, parent: Mapping, entry: Entry) -> Span:
    """All that goes with `entry`: its lines in a block, its comma in braces."""
    lines, key, value = document.lines(), entry.key, entry.value.span
    # The end of a block scalar is the start of the line after it.
    last = value.end_line - 1 if value.end_col == 1 and value.end_line > value.line else value.end_line
    rest = lines[last - 1][value.end_col - 1 :].strip() if last == value.end_line else ""
    if not lines[key.line - 1][: key.col - 1].strip() and (not rest or rest.startswith("#")):
        return Span(document.file, key.line, 1, last + 1, 1)
    others = sorted(parent.entries.values(), key=lambda other: other.key)
    for one, following in pairwise(others):
        if one is entry:
            return Span(document.file, key.line, key.col, following.key.line, following.key.col)
    before = others[-2].value.span if len(others) > 1 else key
    start = (before.end_line, before.end_col) if before is not key else (key.line, key.col)
    return Span(document.file, *start, value.end_line, value.end_col)
