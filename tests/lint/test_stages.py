"""What is wrong with one part of a spec hides nothing that is wrong with another."""

from pathlib import Path

import pytest

from dualpace.lint.runner import lint_document
from dualpace.spec.compose import compose

SPEC = """\
name: stages
model:
  weights: {random: 0}
  shape: {family: llama, layers: 2, hidden: 512, heads: 8, kv_heads: 2, intermediate: 1024, vocab: 1000, context: 4096}
target: {gpu: h200}
"""


def ids(text: str) -> list[str]:
    return [d.id for d in lint_document(compose(text.encode(), "a.yaml"), Path()).diagnostics]


def test_faults_of_yaml_of_values_and_of_meaning_come_together() -> None:
    text = SPEC.replace("h200", "h2000").replace("kv_heads: 2", "kv_heads: 3")
    text += "attention: {page_size: 24, page_size: 16}\nserving: {host: 0.0.0.0}\n"
    assert ids(text) == ["DP203", "DP602", "DP106", "DP003", "DP701"]


@pytest.mark.parametrize(
    ("broken", "found"),
    [
        ("heads: eight", ["DP104"]),  # nothing is said of the ratio of heads
        ("heds: 8", ["DP101"]),  # the key that was meant is not taken as absent, either
        ("heads: 8, head_dim: 0", ["DP105"]),
        ("heads: 8, rope_scaling: 5", ["DP104"]),
    ],
)
def test_rules_say_nothing_of_what_could_not_be_read(broken: str, found: list[str]) -> None:
    assert ids(SPEC.replace("heads: 8", broken)) == found


@pytest.mark.parametrize("shape", ["shape: 5", "shape: []", "shap: {}"])
def test_a_section_that_could_not_be_read_is_not_absent(shape: str) -> None:
    text = f"name: a\nmodel: {{{shape}}}\ntarget: {{gpu: h2000}}\n"
    assert [id_ for id_ in ids(text) if id_ != "DP602"] in (["DP104"], ["DP101"])


def test_a_key_at_the_wrong_level_is_read_as_neither_there_nor_absent() -> None:
    assert ids(SPEC + "gqa_ratio: 8\n") == ["DP102"]


def test_a_spec_with_a_key_too_many_is_still_planned_for_the_rules() -> None:
    assert ids(SPEC.replace("{gpu: h200}", "{gpu: h200, kv_budget: 200GiB}") + "zebra: 1\n") == ["DP804", "DP101"]


def test_resolution_reports_what_no_rule_of_its_section_explains() -> None:
    text = f"name: a\nmodel: {{hub: a/b, revision: {'a' * 40}}}\ntarget: {{gpu: h200}}\n"
    assert ids(text) == ["DP801"]
    assert ids(text + "nic: {slots: 1000}\n") == ["DP801", "DP401"]
    assert ids(text.replace("a/b", "a/b, path: a")) == ["DP201"]


@pytest.mark.parametrize("field", ["model: {path: %s}", "serving: {chat_template: %s, api_key_file: %s}"])
def test_a_path_that_no_file_can_have_is_a_finding(field: str) -> None:
    section = field.replace("%s", "x" * 5000)
    text = SPEC + section if field.startswith("serving") else f"name: a\n{section}\ntarget: {{gpu: h200}}"
    assert ids(text) in (["DP801"], ["DP709"])
