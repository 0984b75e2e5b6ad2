"""What a rule is: a plain function from a context to findings, listed with its id, slug and severity."""

from collections.abc import Callable, Iterator
from typing import NamedTuple

from dualpace.diagnostic import Severity
from dualpace.plan.plan import Plan
from dualpace.spec.document import Document, KeyPath
from dualpace.spec.models import Spec


class LintContext(NamedTuple):
    """What rules look at. `plan` is None when the spec cannot be resolved; rules that need it then find nothing."""

    document: Document
    spec: Spec
    plan: Plan | None


class Finding(NamedTuple):
    """What is wrong with the field at `path`, and the remedy. The runner adds id, severity and place."""

    path: KeyPath
    message: str
    help: str


class Rule(NamedTuple):
    """A check with its permanent id and readable slug."""

    id: str
    slug: str
    severity: Severity
    check: Callable[[LintContext], Iterator[Finding]]
