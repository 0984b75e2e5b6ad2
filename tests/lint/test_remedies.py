"""A remedy is true: a value that help names, written where the finding stands, makes the finding go away."""

import re
from pathlib import Path

import pytest

from dualpace.diagnostic import Edit
from dualpace.lint.fix import fixed
from dualpace.lint.runner import lint_document, repair
from dualpace.spec.compose import compose

from .corpus import CASES, EXAMPLES, lint

# One of the remedies, where help names a value for the place of the finding itself.
VALUE = re.compile(r"(?:lower it to|raise it to|^write|did you mean) (?:about )?`?(?:\w+: )?([\w.:-]+)")
REMEDIES = [
    (case, match[1])
    for case in CASES
    for diagnostic in lint(case, "bad.yaml").diagnostics
    if diagnostic.id == case.partition("-")[0] and (match := VALUE.search(diagnostic.help))
]


def test_many_remedies_are_values() -> None:
    assert len(REMEDIES) >= 25


@pytest.mark.parametrize(("case", "value"), REMEDIES, ids=lambda value: str(value))
def test_the_named_value_is_the_remedy(case: str, value: str) -> None:
    result = lint(case, "bad.yaml")
    id_ = case.partition("-")[0]
    finding = next(d for d in result.diagnostics if d.id == id_)
    text = fixed(result.document.text, [Edit(finding.span, value)])
    after = lint_document(compose(text.encode(), "bad.yaml"), EXAMPLES / case)
    assert (finding.id, finding.span.line) not in {(d.id, d.span.line) for d in after.diagnostics}


FIXABLE = [case for case in CASES if any(d.fix and d.id == case[:5] for d in lint(case, "bad.yaml").diagnostics)]


@pytest.mark.parametrize("case", FIXABLE)
def test_a_fix_is_the_remedy(case: str) -> None:
    bad = lint(case, "bad.yaml")
    left = [d for d in repair(bad, EXAMPLES / case).diagnostics if d.id == case[:5]]
    assert not any(d.fix for d in left)


def test_a_gpu_called_cpu_is_led_to_the_cpu_target() -> None:
    text = (EXAMPLES / "DP602-unknown-gpu" / "bad.yaml").read_text().replace("gpu: rtx4900", "gpu: cpu")
    (finding,) = lint_document(compose(text.encode(), "a.yaml"), Path()).diagnostics
    assert finding.id == "DP602"
    assert finding.help.endswith("; without a GPU, `cpu: true`")
    remedied = text.replace("gpu: cpu", "cpu: true")
    assert not lint_document(compose(remedied.encode(), "a.yaml"), Path()).diagnostics


def test_the_largest_that_fits_is_the_largest() -> None:
    case, field = "DP806-batch-fits", "max_batch"
    finding = next(d for d in lint(case, "bad.yaml").diagnostics if d.id == "DP806")
    largest = int(re.findall(r"lower it to (\d+)", finding.help)[0])
    text = (EXAMPLES / case / "bad.yaml").read_text()

    def ids(rows: int) -> set[str]:
        changed = re.sub(rf"{field}: \d+", f"{field}: {rows}", text)
        return {d.id for d in lint_document(compose(changed.encode(), "a.yaml"), Path()).diagnostics}

    assert "DP806" not in ids(largest)
    assert "DP806" in ids(largest + 1)


def test_the_targets_that_a_deployment_is_said_to_fit_hold_it() -> None:
    case = "DP803-weights-fit"
    text = (EXAMPLES / case / "bad.yaml").read_text()
    finding = next(d for d in lint(case, "bad.yaml").diagnostics if d.id == "DP803")
    assert finding.help == "it fits b200 or 2 cards"
    for changed in (text.replace("gpu: h200", "gpu: b200"), text.replace("gpu: h200", "gpu: h200\n  count: 2")):
        assert lint_document(compose(changed.encode(), "a.yaml"), Path()).plan is not None
    smaller = text.replace("gpu: h200", "gpu: h100")
    assert lint_document(compose(smaller.encode(), "a.yaml"), Path()).plan is None
