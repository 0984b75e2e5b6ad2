"""Every rule has a bad spec whose report is reviewed text, and a good one that it leaves alone."""

import pytest

from dualpace.lint import runner
from dualpace.lint.rule import Rule
from dualpace.lint.rules import RULES

from .corpus import CASES, EXAMPLES, bad_report, lint


def test_every_rule_has_a_pair() -> None:
    assert {f"{rule.id}-{rule.slug}" for rule in RULES} <= set(CASES)


def test_ids_and_slugs_are_unique() -> None:
    assert len({rule.id for rule in RULES}) == len({rule.slug for rule in RULES}) == len(RULES)


def test_there_are_forty_rules_and_more() -> None:
    assert len(RULES) >= 40


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.id)
def test_a_rule_that_is_switched_off_fails_its_golden_file(rule: Rule, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "RULES", tuple(other for other in RULES if other != rule))
    case = f"{rule.id}-{rule.slug}"
    assert bad_report(case) != (EXAMPLES / case / "bad.txt").read_text(encoding="utf-8")


@pytest.mark.parametrize("case", CASES)
def test_bad_spec_gets_the_reviewed_report(case: str) -> None:
    assert bad_report(case) == (EXAMPLES / case / "bad.txt").read_text(encoding="utf-8")


@pytest.mark.parametrize("case", CASES)
def test_bad_spec_has_the_finding_and_good_spec_does_not(case: str) -> None:
    id_ = case.partition("-")[0]
    assert id_ in {d.id for d in lint(case, "bad.yaml").diagnostics}
    good = lint(case, "good.yaml")
    assert [d for d in good.diagnostics if d.id != "DP802"] == []
    assert good.plan is not None
    if id_ == "DP802":
        assert good.diagnostics == ()
