"""An allowance is bound to the key on its line, or on the line below it, and to nothing else."""

from pathlib import Path

from dualpace.lint.runner import lint_document
from dualpace.spec.compose import compose

BASE = """\
name: allow
model:
  weights: {random: 0}
  shape: {family: llama, layers: 2, hidden: 512, heads: 8, kv_heads: 2, intermediate: 1024, vocab: 1000, context: 4096}
target: {gpu: h200}
"""


def ids(text: str) -> list[str]:
    return [d.id for d in lint_document(compose((BASE + text).encode(), "allow.yaml"), Path()).diagnostics]


def test_comment_on_the_line_of_the_key() -> None:
    assert ids("serving:\n  host: 0.0.0.0  # dualpace: allow DP701 because of the gateway\n") == []


def test_comment_above_the_key_and_above_another_comment() -> None:
    assert ids("serving:\n  # dualpace: allow DP701 because of the gateway\n  # which is ours\n  host: 0.0.0.0\n") == []


def test_comment_on_the_section_does_not_reach_into_it() -> None:
    assert ids("serving:  # dualpace: allow DP701 because of the gateway\n  host: 0.0.0.0\n") == ["DP901", "DP701"]


def test_comment_covers_its_ids_only() -> None:
    text = "nic:\n  slots: 1000  # dualpace: allow DP403, DP701 because of nothing\n"
    assert ids(text) == ["DP401"]
    text = "nic:\n  device: a  # dualpace: allow DP403, DP701 because of nothing\n"
    assert ids(text) == ["DP901"]


def test_value_on_a_line_of_its_own_is_still_the_keys() -> None:
    assert ids("serving:\n  # dualpace: allow DP701 because of the gateway\n  host:\n    0.0.0.0\n") == []


def test_text_that_looks_like_a_comment_inside_a_value_is_none() -> None:
    text = 'serving:\n  model_name: "a # dualpace: allow DP701 because text"\n  host: 0.0.0.0\n'
    assert ids(text) == ["DP701"]


def test_an_allowed_error_does_not_make_a_plan_possible() -> None:
    text = "attention:\n  gqa_ratio: 8  # dualpace: allow DP301 because I say so\n"
    assert ids(text) == ["DP801"]
