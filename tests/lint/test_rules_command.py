"""`dualpace rules`: every finding is listed and explained, and the published page says the same."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from dualpace.lint.explain import CATALOGUE, explanation, listing, page
from dualpace.lint.runner import lint_document
from dualpace.spec.compose import compose

from .corpus import CASES, EXAMPLES, lint

ROOT = Path(__file__).parents[2]


def rules(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "dualpace.cli", "rules", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True)


def test_every_entry_has_an_example_and_every_example_an_entry() -> None:
    assert [f"{entry.id}-{entry.slug}" for entry in CATALOGUE] == CASES


@pytest.mark.parametrize("case", CASES)
def test_what_a_lint_reports_is_what_the_catalogue_says(case: str) -> None:
    kinds = {(e.id, e.slug, e.severity) for e in CATALOGUE}
    assert {(d.id, d.slug, d.severity) for d in lint(case, "bad.yaml").diagnostics} <= kinds


def test_summaries_are_one_sentence() -> None:
    for entry in CATALOGUE:
        assert re.fullmatch(r"[A-Z][^.]*(\.\w[^.]*)*\.", entry.summary), entry


def test_list_has_a_line_an_entry() -> None:
    lines = rules().stdout.splitlines()
    assert lines == listing().splitlines()
    assert [line.split()[0] for line in lines] == [entry.id for entry in CATALOGUE]


def test_explanation_shows_both_specs_and_the_report() -> None:
    text = rules("DP301").stdout
    assert text == rules("gqa-ratio").stdout
    folder = EXAMPLES / "DP301-gqa-ratio"
    shown = [line.removeprefix("    ") for line in text.splitlines()]
    for name in ("bad.yaml", "bad.txt", "good.yaml"):
        wanted = (folder / name).read_text().splitlines()
        assert any(shown[i : i + len(wanted)] == wanted for i in range(len(shown))), name


def test_what_is_shown_can_be_copied_and_linted() -> None:
    text = explanation(next(entry for entry in CATALOGUE if entry.id == "DP301"))
    good = text.partition("Good:\n\n")[2]
    spec = "".join(line.removeprefix("    ") for line in good.splitlines(keepends=True))
    assert lint_document(compose(spec.encode(), "a.yaml"), Path()).diagnostics == ()


def test_unknown_name() -> None:
    done = rules("DP999")
    assert done.returncode == 2
    assert done.stderr == "dualpace: nothing is called DP999: `dualpace rules` lists what there is\n"


def test_published_page_is_up_to_date() -> None:
    assert (ROOT / "docs" / "rules.md").read_text(encoding="utf-8") == page()
