"""Fixes change what they mean to change and keep everything else: comments, order, layout, line ends."""

from pathlib import Path

import pytest

from dualpace.lint.runner import lint_document, repair
from dualpace.spec.compose import compose

SPEC = """\
# the deployment
name: fix
model:
  weights: {random: 0}  # for measuring
  shape: {family: llama, layers: 2, hidden: 512, heads: 8, kv_heads: 2, intermediate: 1024, vocab: 1000, context: 4096}
target:
  cpu: true
"""


def fix(text: str) -> str:
    return repair(lint_document(compose(text.encode(), "a.yaml"), Path()), Path()).document.text


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("attention:\n  page_size: 16  # good\n  route: split  # bad\n", "attention:\n  page_size: 16  # good\n"),
        ("attention:\n  route: split\n\n  # why\n  page_size: 16\n", "attention:\n\n  # why\n  page_size: 16\n"),
        ("attention:\n  route: split\n", ""),  # an empty section would be an error
        ("attention: {page_size: 16, route: split}\n", "attention: {page_size: 16}\n"),
        ("attention: {route: split, page_size: 16}\n", "attention: {page_size: 16}\n"),
        ("attention: {route: split}  # all of it\n", ""),
        ("attention: {\n  page_size: 16,\n  route: split\n}\n", "attention: {\n  page_size: 16,\n}\n"),
        ("nic: {device: a, port: 2, rings: 2, gid_index: 1}\n", "nic: {rings: 2}\n"),
        ("offload:\n  selection:\n    # few\n    blocks: 4\n  mode: off\n", "offload:\n  mode: off\n"),
        ("nic:\n  device: >-\n    mlx5_0\n  rings: 2\n", "nic:\n  rings: 2\n"),
        ("nic:\n  # dualpace: allow DP403 because no\n  rings: 2\n", "nic:\n  rings: 2\n"),
        ("nic:\n  rings: 2  # dualpace: allow DP403 because no\n", "nic:\n  rings: 2\n"),
        ("nic: {rings: '2'}\n", "nic: {rings: 2}\n"),
        ("serving: {model-name: 5}\n", 'serving: {model_name: "5"}\n'),
        ("serving:\n  Host: 127.0.0.1\n", "serving:\n  host: 127.0.0.1\n"),
    ],
)
def test_remedy(before: str, after: str) -> None:
    assert fix(SPEC + before) == SPEC + after
    assert fix(SPEC + after) == SPEC + after


@pytest.mark.parametrize(
    "text",
    [
        "attention: {gqa_ratio: 8}\n",  # which of the two numbers is wrong is not for a tool to say
        "nic: {rings: many}\n",
        "serving: {max_body: 8}\n",
        "serving: {hots: 127.0.0.1}\n",
        "serving: {host: a, Host: b}\n",
    ],
)
def test_what_takes_a_decision_is_left_alone(text: str) -> None:
    assert fix(SPEC + text) == SPEC + text


def test_a_remedy_that_would_break_an_alias_is_not_taken() -> None:
    text = SPEC.replace("name: fix", "name: &name FIX").replace("FIX", "5") + "serving: {model_name: *name}\n"
    assert fix(text) == text


def test_line_ends_and_text_beyond_ascii_stay() -> None:
    text = SPEC.replace("the deployment", "déploiement \U0001f680") + "attention:\n  route: split\n"
    assert fix(text.replace("\n", "\r\n")) == SPEC.replace("the deployment", "déploiement \U0001f680").replace(
        "\n", "\r\n"
    )


def test_words_of_yaml_1_1_become_truth_values() -> None:
    assert fix(SPEC.replace("cpu: true", "cpu: yes")) == SPEC
