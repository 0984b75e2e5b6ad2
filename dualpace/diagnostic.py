"""What every check reports: a place in a spec, how grave it is, what is wrong and what to do about it."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum


class Severity(IntEnum):
    """How grave a finding is; comparable, so that a threshold is `severity >= fail_on`."""

    NOTE = 1
    WARNING = 2
    ERROR = 3

    def __str__(self) -> str:
        return self.name.lower()


@dataclass(frozen=True, slots=True, order=True)
class Span:
    """A range of a text file. Lines and columns count characters from 1; `end_col` is the column after the last."""

    file: str
    line: int
    col: int
    end_line: int
    end_col: int


@dataclass(frozen=True, slots=True)
class Edit:
    """What stands at `span` becomes `text`. A span may end at column 1 of the line after a text's last."""

    span: Span
    text: str


@dataclass(frozen=True, slots=True)
class Diagnostic:
    """One finding. `id` is permanent (`DP301`), `slug` its readable name, `help` the remedy.

    `fix` is the remedy as edits of the text, () where it takes a decision.
    """

    id: str
    slug: str
    severity: Severity
    message: str
    help: str
    span: Span
    fix: tuple[Edit, ...] = ()


def ordered(diagnostics: Iterable[Diagnostic]) -> tuple[Diagnostic, ...]:
    """Each finding once, in the order in which a reader of the files meets them."""
    return tuple(sorted(set(diagnostics), key=lambda d: (d.span, d.id, d.message)))
