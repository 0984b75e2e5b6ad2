"""One spec's way through the compiler's front: read, load, plan, rules, allowances."""

from dataclasses import dataclass
from pathlib import Path

from dualpace.diagnostic import Diagnostic, Severity, ordered
from dualpace.lint.allow import read_allowances, unused
from dualpace.lint.rule import LintContext
from dualpace.lint.rules import RULES
from dualpace.plan.error import PlanError
from dualpace.plan.plan import Plan
from dualpace.plan.resolve import resolve
from dualpace.spec.compose import read_document
from dualpace.spec.document import Document
from dualpace.spec.load import load
from dualpace.spec.models import Spec


@dataclass(frozen=True, slots=True)
class Result:
    """What is known of a spec. `plan` is None exactly if a diagnostic is an error."""

    document: Document
    plan: Plan | None
    diagnostics: tuple[Diagnostic, ...]


def lint_file(path: Path, hub_cache: Path | None = None) -> Result:
    """Everything there is to say about the spec at `path`. Raises OSError."""
    return lint_document(read_document(path), path.parent, hub_cache)


def lint_document(document: Document, base: Path, hub_cache: Path | None = None) -> Result:
    """Everything there is to say about `document`, whose relative paths start at `base`.

    `hub_cache` holds snapshots of the model hub; without it a hub model needs a shape.
    """
    loaded = load(document)
    if loaded.spec is None:
        return Result(document, None, loaded.diagnostics)
    plan = _plan(document, loaded.spec, base, hub_cache)
    context = LintContext(document, loaded.spec, plan if isinstance(plan, Plan) else None)
    diagnostics = _rules(context)
    # A spec that breaks a rule often breaks resolution for the same reason: one report is enough.
    if isinstance(plan, Diagnostic) and not _has_error(diagnostics):
        diagnostics.append(plan)
    usable = None if _has_error(diagnostics) else context.plan
    return Result(document, usable, ordered(diagnostics))


def _plan(document: Document, spec: Spec, base: Path, hub_cache: Path | None) -> Plan | Diagnostic:
    try:
        return resolve(spec, base, hub_cache)
    except PlanError as error:
        message = ": ".join(part for part in (".".join(map(str, error.path)), error.message) if part)
        return Diagnostic("DP801", "no-plan", Severity.ERROR, message, error.help, document.span(error.path))


def _rules(context: LintContext) -> list[Diagnostic]:
    """What the rules find and the spec does not allow, and what is wrong with its allowances."""
    found = [
        Diagnostic(
            rule.id, rule.slug, rule.severity, finding.message, finding.help, context.document.span(finding.path)
        )
        for rule in RULES
        for finding in rule.check(context)
    ]
    allowances, faults = read_allowances(context.document, frozenset(rule.id for rule in RULES))
    kept = [d for d in found if not any(allowance.allows(d) for allowance in allowances)]
    # Without a plan some rules cannot have found what is allowed.
    idle = [a for a in allowances if context.plan and not any(a.allows(d) for d in found)]
    return kept + faults + [unused(allowance) for allowance in idle]


def _has_error(diagnostics: list[Diagnostic]) -> bool:
    return any(d.severity == Severity.ERROR for d in diagnostics)
