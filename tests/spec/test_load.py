"""A spec gets all its errors at once, each at its place, with what is accepted and a remedy."""

import pytest

from dualpace.spec.compose import compose
from dualpace.spec.load import load

GOOD = """\
name: good
model:
  weights: {random: 0}
  shape: {family: llama, layers: 2, hidden: 512, heads: 8, kv_heads: 2, intermediate: 1024, vocab: 1000, context: 4096}
target: {cpu: true}
"""


def findings(text: str) -> list[tuple[str, int, int, str, str]]:
    found = load(compose(text.encode(), "a.yaml")).diagnostics
    return [(d.id, d.span.line, d.span.col, d.message, d.help) for d in found]


def one(text: str) -> tuple[str, str, str]:
    ((id_, _, _, message, help_),) = findings(GOOD + text)
    return id_, message, help_


def test_a_good_spec_loads() -> None:
    spec, unread, diagnostics = load(compose(GOOD.encode(), "a.yaml"))
    assert (unread, diagnostics) == (frozenset(), ())
    assert spec is not None
    assert spec.model.shape is not None
    assert spec.model.shape.kv_heads == 2
    assert spec.serving.max_body == 8 * 2**20
    assert spec.serving.drain == 7.0


def test_eight_errors_of_eight_kinds_at_once() -> None:
    text = """\
name: My Spec
page_size: 16
model:
  weights: {randm: 0}
  shape:
    layers: 0
    hidden: 512
    heads: "8"
    kv_heads: 2
    intermediate: 1024
    vocab: 1000
    context: 4096
  dtype: bf-16
offload:
  host_budget: 40
target: {cpu: true}
target: {cpu: false}
"""
    assert [found[:3] for found in findings(text)] == [
        ("DP108", 1, 7),
        ("DP102", 2, 1),
        ("DP101", 4, 13),
        ("DP103", 5, 3),
        ("DP105", 6, 13),
        ("DP104", 8, 12),
        ("DP106", 13, 10),
        ("DP107", 15, 16),
        ("DP003", 17, 1),
    ]


def test_unknown_key_gets_a_suggestion() -> None:
    assert one("attention: {page-size: 16}\n")[::2] == ("DP101", "did you mean `page_size`?")
    assert one("sheduler: {}\n")[::2] == ("DP101", "did you mean `scheduler`?")
    assert one("pagesize: 16\n")[::2] == ("DP101", "did you mean `attention.page_size`?")
    assert (
        one("nic: {zebra: 1}\n")[2] == "its fields are transport, device, port, gid_index, memory, gate, rings, slots"
    )


def test_key_at_the_wrong_level_is_sent_home() -> None:
    assert one("gqa_ratio: 4\n") == ("DP102", "the spec has no field `gqa_ratio`", "move it under `attention`")
    assert one("serving: {attention: {}}\n")[2] == "move it to the top level"


def test_a_misspelt_key_is_not_also_reported_as_missing() -> None:
    assert [f[0] for f in findings(GOOD.replace("family:", "famly:"))] == ["DP101"]


def test_missing_key_says_what_to_add() -> None:
    ((id_, line, col, message, help_),) = findings(GOOD.replace(" layers: 2,", ""))
    assert (id_, line, col) == ("DP103", 4, 3)
    assert message == "model.shape lacks `layers`"
    assert help_ == "add `layers: 32`: Decoder layers."


def test_bare_number_is_told_to_have_a_unit() -> None:
    id_, message, help_ = one("serving: {max_body: 8}\n")
    assert id_ == "DP107"
    assert message == ("serving.max_body is 8, a number without a unit: must be a size with its unit, such as 40GiB")
    assert help_ == "for example `max_body: 8MiB`: Largest request body."


def test_union_is_one_finding() -> None:
    assert one("attention: {gqa_ratio: lots}\n")[:2] == (
        "DP104", 'attention.gqa_ratio is "lots": must be a whole number from 1 to 1024 or auto',
    )  # fmt: skip
    assert one("attention: {gqa_ratio: 0}\n")[0] == "DP105"
    assert one("attention: {page_size: 24}\n")[:2] == (
        "DP106", "attention.page_size is 24: must be one of 8, 16, 32, 64, 128, auto",
    )  # fmt: skip
    assert one("offload: {selection: sparse}\n")[:2] == (
        "DP104", 'offload.selection is "sparse": must be a mapping with blocks or exact',
    )  # fmt: skip
    assert one("offload: {selection: {blocks: 0}}\n")[1].startswith("offload.selection.blocks is 0: must be a whole")


def test_values_are_not_coerced() -> None:
    assert one("nic: {rings: true}\n")[0] == "DP104"
    assert one("nic: {rings: 1.0}\n")[0] == "DP104"
    assert one('nic: {rings: "1"}\n')[1] == 'nic.rings is "1": must be a whole number from 1 to 64'
    assert one("scheduler: {max_batch: 99999999999999999999999}\n")[0] in {"DP104", "DP105"}


@pytest.mark.parametrize("value", [".inf", ".nan", "0", "-1", "1e300", "ten"])
def test_ratios_are_finite_and_positive(value: str) -> None:
    text = GOOD.replace("context: 4096", f"context: 4096, rope_theta: {value}")
    assert findings(text)[0][0] in {"DP104", "DP105"}


def test_yaml_1_1_booleans_are_text() -> None:
    ((_, _, _, message, _),) = findings(GOOD.replace("cpu: true", "cpu: yes"))
    assert message == 'target.cpu is "yes": must be true or false'


def test_empty_section() -> None:
    assert one("nic:\n") == (
        "DP104",
        "nic is empty: must be a mapping with transport, device, port, gid_index, memory, gate, rings, slots",
        "give it fields, or remove the key",
    )


@pytest.mark.parametrize("text", ["5\n", "[a]\n", "just words\n", "null\n"])
def test_root_that_is_no_mapping(text: str) -> None:
    ((id_, line, col, message, _),) = findings(text)
    assert (id_, line, col) == ("DP104", 1, 1)
    assert message.startswith("the spec is ")


def test_close_words_are_suggested() -> None:
    assert one("nic: {transport: rmda}\n") == (
        "DP106", 'nic.transport is "rmda": must be one of shm, rdma', "did you mean `rdma`?",
    )  # fmt: skip


def test_long_values_are_cut() -> None:
    assert len(one(f"nic: {{transport: {'x' * 500}}}\n")[1]) < 120
    assert len(one(f"nic: {{{'x' * 500}: 1}}\n")[1]) < 120
