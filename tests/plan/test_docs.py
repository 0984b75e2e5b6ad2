"""The pages on plans show what the command prints and what the tables hold."""

import pytest

from dualpace.plan.targets import CPU, GIB, GPUS

from .documented import PAGE, RECALL_PAGE, examples, output

TEXT = PAGE.read_text(encoding="utf-8")


EXAMPLES = [*examples(TEXT).items(), *examples(RECALL_PAGE.read_text(encoding="utf-8")).items()]


@pytest.mark.parametrize(("arguments", "shown"), EXAMPLES)
def test_an_example_prints_what_the_page_shows(arguments, shown):
    assert output(arguments) == shown


@pytest.mark.parametrize("page", [PAGE, RECALL_PAGE], ids=lambda page: page.name)
def test_there_are_examples(page):
    assert examples(page.read_text(encoding="utf-8"))


@pytest.mark.parametrize("target", [*GPUS.values(), CPU], ids=lambda target: target.name)
def test_a_target_stands_there_with_its_source(target):
    sm = f"sm_{target.sm}" if target.sm else ""
    rates = f"{target.read_bandwidth / 1e9:,.0f} | {target.flops / 1e12:,.4g}"
    link = f"{target.link_bandwidth / 1e9:.3g}" if target.link_bandwidth else ""
    assert f"| {target.name} | {sm} | {target.memory // GIB} | {rates} | {link} | {target.source} |\n" in TEXT
