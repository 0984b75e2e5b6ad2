"""Everything that a lint can find, for lists and reports: the rules, and what stands around them."""

from typing import NamedTuple

from dualpace.diagnostic import Severity
from dualpace.lint.rules import RULES


class Entry(NamedTuple):
    """A kind of finding. `summary` says in one sentence what holds where it is not found."""

    id: str
    slug: str
    severity: Severity
    summary: str


_READING = (
    ("DP001", "encoding", "A spec is plain UTF-8 text without control characters or a byte-order mark."),
    ("DP002", "syntax", "A spec is YAML, indented with spaces."),
    ("DP003", "duplicate-key", "A key stands once in its mapping."),
    ("DP004", "merge-key", "Fields are written out; merge keys are not part of YAML 1.2."),
    ("DP005", "key-type", "Keys are the names of fields."),
    ("DP006", "documents", "A file holds one spec."),
    ("DP007", "empty", "A file holds a spec."),
    ("DP008", "too-large", "A spec is of a spec's size."),
    ("DP009", "tag", "YAML tags have no meaning in a spec."),
    ("DP101", "unknown-key", "Every key is the name of a field."),
    ("DP102", "misplaced-key", "Every key stands in its own section."),
    ("DP103", "missing-key", "Fields without a default are given."),
    ("DP104", "wrong-type", "A value is of its field's type; nothing is converted."),
    ("DP105", "out-of-range", "A number is within its field's range."),
    ("DP106", "unknown-value", "A word is one of those that its field takes."),
    ("DP107", "unit", "Sizes and durations have a unit."),
    ("DP108", "format", "Text has the form that its field asks for."),
    ("DP801", "no-plan", "A spec can be resolved to a plan."),
)
_ALLOWANCES = (
    ("DP901", "allow-unused", "A finding that is allowed is found at that key."),
    ("DP902", "allow-without-reason", "An allowance names ids and a reason."),
    ("DP903", "allow-unknown", "An allowance names rules."),
)

CATALOGUE: tuple[Entry, ...] = tuple(
    sorted(
        [
            *(Entry(id_, slug, Severity.ERROR, summary) for id_, slug, summary in _READING),
            *(Entry(id_, slug, Severity.WARNING, summary) for id_, slug, summary in _ALLOWANCES),
            *(Entry(rule.id, rule.slug, rule.severity, rule.summary) for rule in RULES),
        ]
    )
)
