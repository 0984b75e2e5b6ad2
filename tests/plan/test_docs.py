"""docs/plan.md shows what the command prints and what the tables hold."""

import pytest

from dualpace.plan.targets import CPU, GIB, GPUS

from .documented import PAGE, examples, output

TEXT = PAGE.read_text(encoding="utf-8")


@pytest.mark.parametrize(("arguments", "shown"), examples(TEXT).items())
def test_an_example_prints_what_the_page_shows(arguments, shown):
    assert output(arguments) == shown


def test_there_are_examples():
    assert examples(TEXT)


@pytest.mark.parametrize("target", [*GPUS.values(), CPU], ids=lambda target: target.name)
def test_a_target_stands_there_with_its_source(target):
    sm = f"sm_{target.sm}" if target.sm else ""
    rates = f"{target.read_bandwidth / 1e9:,.0f} | {target.flops / 1e12:,.4g}"
    assert f"| {target.name} | {sm} | {target.memory // GIB} | {rates} | {target.source} |\n" in TEXT
