"""What a rule is: a plain function from a context to findings, listed with its id, slug and severity."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from dualpace.diagnostic import Severity
from dualpace.plan.error import PlanError
from dualpace.plan.plan import Plan
from dualpace.spec.document import Document, KeyPath
from dualpace.spec.models import Spec


class LintContext(NamedTuple):
    """What rules look at.

    A rule that asks `spec` for a field that could not be read ends there. `plan` is None when the spec cannot be
    resolved, for the reason in `refusal` if it was read in full; rules that need the plan then find nothing.
    `resolve` plans variations of the spec, so that a remedy can say what would fit.
    """

    document: Document
    spec: Spec
    plan: Plan | None
    refusal: PlanError | None
    base: Path
    resolve: Callable[[Spec], Plan]


class Finding(NamedTuple):
    """What is wrong with the field at `path`, and the remedy. The runner adds id, severity and place.

    A field is `removable` if the deployment is the same without it, so that taking it out takes no decision.
    """

    path: KeyPath
    message: str
    help: str
    removable: bool = False


class Rule(NamedTuple):
    """A check with its permanent id and readable slug."""

    id: str
    slug: str
    severity: Severity
    check: Callable[[LintContext], Iterator[Finding]]

    @property
    def summary(self) -> str:
        """What holds where the rule is silent, in one sentence."""
        return (self.check.__doc__ or "").partition("\n")[0]
