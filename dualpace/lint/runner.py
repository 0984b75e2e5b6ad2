"""One spec's way through the compiler's front: read, load, plan, rules, allowances."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from dualpace.diagnostic import Diagnostic, Severity, ordered
from dualpace.lint.allow import read_allowances, unused
from dualpace.lint.fix import fixed, removal
from dualpace.lint.rule import Finding, LintContext, Rule
from dualpace.lint.rules import RULES
from dualpace.plan.error import PlanError
from dualpace.plan.plan import Plan
from dualpace.plan.resolve import resolve
from dualpace.spec.compose import compose, read_document
from dualpace.spec.document import Document, KeyPath
from dualpace.spec.load import load
from dualpace.spec.models import Spec, UnreadError

# Far more than a spec has fields.
MAX_REPAIRS = 200


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
    plans = partial(resolve, base=base, hub_cache=hub_cache)
    plan, refusal = (None, None) if loaded.unread else _plan(loaded.spec, plans)
    context = LintContext(document, loaded.spec, plan, refusal, base, plans)
    diagnostics = ordered([*loaded.diagnostics, *_rules(context)])
    return Result(document, None if any(d.severity == Severity.ERROR for d in diagnostics) else plan, diagnostics)


def repair(result: Result, base: Path, hub_cache: Path | None = None) -> Result:
    """`result` of the text after every remedy that takes no decision, but for those that leave worse YAML."""

    def after(diagnostic: Diagnostic) -> Result | None:
        text = fixed(result.document.text, diagnostic.fix)
        again = lint_document(compose(text.encode(), result.document.file), base, hub_cache)
        worse = len(again.document.diagnostics) > len(result.document.diagnostics)
        return None if worse or text == result.document.text else again

    # One at a time, each on the text that the last has left: two together can be wrong where each alone is right.
    for _ in range(MAX_REPAIRS):
        better = next((again for d in result.diagnostics if d.fix and (again := after(d))), None)
        if better is None:
            break
        result = better
    return result


def _plan(spec: Spec, plans: Callable[[Spec], Plan]) -> tuple[Plan | None, PlanError | None]:
    try:
        return plans(spec), None
    except PlanError as refusal:
        return None, refusal
    except OSError as error:  # of a path that the spec names
        return None, PlanError((), f"{error.filename}: {error.strerror}")


def _rules(context: LintContext) -> list[Diagnostic]:
    """What the rules find and the spec does not allow, why there is no plan, and what is wrong with allowances."""
    found = [(finding.path, _diagnostic(context, rule, finding)) for rule in RULES for finding in _check(rule, context)]
    allowances, faults = read_allowances(context.document, frozenset(rule.id for rule in RULES))
    kept = [(path, d) for path, d in found if not any(allowance.allows(d) for allowance in allowances)]
    # Without a plan some rules cannot have found what is allowed.
    idle = [a for a in allowances if context.plan and not any(a.allows(d) for _, d in found)]
    # What breaks a rule often breaks resolution, too: one report of it is enough.
    wrong = {path[:1] for path, d in kept if d.severity == Severity.ERROR}
    refused = [_refused(context, r) for r in [context.refusal] if r and not _explained(r, wrong)]
    return [d for _, d in kept] + refused + faults + [unused(context.document, allowance) for allowance in idle]


def _explained(refusal: PlanError, wrong: set[KeyPath]) -> bool:
    """Whether an error in one of the sections `wrong` is what has kept resolution from a plan."""
    return refusal.path[:1] in wrong if refusal.path else bool(wrong)


def _check(rule: Rule, context: LintContext) -> Iterator[Finding]:
    """What `rule` finds in the part of the spec that could be read."""
    try:
        yield from rule.check(context)
    except UnreadError:
        return


def _diagnostic(context: LintContext, rule: Rule, finding: Finding) -> Diagnostic:
    span = context.document.span(finding.path)
    fix = removal(context.document, finding.path) if finding.removable else ()
    return Diagnostic(rule.id, rule.slug, rule.severity, finding.message, finding.help, span, fix)


def _refused(context: LintContext, refusal: PlanError) -> Diagnostic:
    message = ": ".join(part for part in (".".join(map(str, refusal.path)), refusal.message) if part)
    span = context.document.span(refusal.path)
    return Diagnostic("DP801", "no-plan", Severity.ERROR, message, refusal.help, span)
