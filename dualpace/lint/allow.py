"""`# dualpace: allow DP301 because REASON`: a finding that the spec's owner accepts, at one key.

The comment stands on the key's line or above it and covers the findings at that key and its value, nothing below. Only
rules can be allowed: a spec that cannot be read or planned cannot be used, whatever a comment says.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from dualpace.diagnostic import Diagnostic, Edit, Severity, Span
from dualpace.lint.fix import comment_removal
from dualpace.spec.document import Document, Scalar

_COMMENT = re.compile(r"(?:^|\s)(#\s*dualpace:\s*allow\b(.*))")
_CLAUSE = re.compile(r"\s+(DP\d+(?:\s*,\s*DP\d+)*)\s+because\s+\S.*")
_ID = re.compile(r"DP\d+")


@dataclass(frozen=True, slots=True)
class Allowance:
    """One allowed id, `alone` in its comment. `covers` are the places of the keys and values it is bound to."""

    id: str
    alone: bool
    comment: Span
    covers: frozenset[Span]

    def allows(self, diagnostic: Diagnostic) -> bool:
        """Whether `diagnostic` is what the comment means."""
        return diagnostic.id == self.id and diagnostic.span in self.covers


def read_allowances(document: Document, known: frozenset[str]) -> tuple[list[Allowance], list[Diagnostic]]:
    """The allowances in `document`'s comments, and what is wrong with them. `known` are the ids of rules."""
    allowances: list[Allowance] = []
    faults: list[Diagnostic] = []
    for comment, clause, line in _comments(document):
        match = _CLAUSE.fullmatch(clause)
        if match is None:
            help_ = "write `# dualpace: allow DP301 because` and the reason"
            faults.append(
                _fault(
                    "DP902", "allow-without-reason", comment, "this allows nothing: it needs ids and a reason", help_
                )
            )
            continue
        covers = _covered(document, line)
        ids = _ID.findall(match[1])
        for id_ in ids:
            if id_ in known:
                allowances.append(Allowance(id_, len(ids) == 1, comment, covers))
            else:
                message = f"{id_} is not a rule that can be allowed"
                faults.append(_fault("DP903", "allow-unknown", comment, message, "remove it, or correct the id"))
    return allowances, faults


def unused(document: Document, allowance: Allowance) -> Diagnostic:
    """The finding that `allowance` no longer allows anything."""
    message = f"{allowance.id} is allowed here, but is not found at this key"
    help_ = "remove the comment, or move it to the key"
    fix = (comment_removal(document, allowance.comment),) if allowance.alone else ()
    return _fault("DP901", "allow-unused", allowance.comment, message, help_, fix)


def _comments(document: Document) -> Iterator[tuple[Span, str, int]]:
    """Each comment's place, its text after `allow`, and the line whose keys it is bound to."""
    lines = document.lines()
    scalars = [e.value.span for e in document.entries() if isinstance(e.value, Scalar)]
    for number, text in enumerate(lines, start=1):
        match = _COMMENT.search(text)
        if match is None:
            continue
        col, end = match.start(1) + 1, match.end(1) + 1
        if any((s.line, s.col) <= (number, col) < (s.end_line, s.end_col) for s in scalars):
            continue
        bound = number
        while bound <= len(lines) and lines[bound - 1].lstrip().startswith("#"):
            bound += 1
        yield Span(document.file, number, col, number, end), match[2].rstrip(), bound


def _covered(document: Document, line: int) -> frozenset[Span]:
    entries = [entry for entry in document.entries() if entry.key.line == line]
    return frozenset(span for entry in entries for span in (entry.key, entry.value.span))


def _fault(id_: str, slug: str, span: Span, message: str, help_: str, fix: tuple[Edit, ...] = ()) -> Diagnostic:
    return Diagnostic(id_, slug, Severity.WARNING, message, help_, span, fix)
