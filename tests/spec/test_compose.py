"""YAML text: positions of what can be read, findings for what cannot."""

import pytest
import yaml

from dualpace.spec import compose as module
from dualpace.spec.compose import MAX_BYTES, MAX_DEPTH, compose
from dualpace.spec.document import Document


@pytest.fixture(params=["libyaml", "python"], autouse=True)
def parser(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "libyaml" and not yaml.__with_libyaml__:
        pytest.skip("this PyYAML has no libyaml")
    monkeypatch.setattr(module, "_PARSER", yaml.CLoader if request.param == "libyaml" else yaml.Loader)


def read(text: str | bytes) -> Document:
    return compose(text if isinstance(text, bytes) else text.encode(), "a.yaml")


def findings(text: str | bytes) -> list[tuple[str, int, int]]:
    return [(d.id, d.span.line, d.span.col) for d in read(text).diagnostics]


def test_every_key_and_value_knows_its_place() -> None:
    document = read("a:\n  bé: [1, x]\n  'c': {d: \"q\"}\n")
    assert document.data() == {"a": {"bé": [1, "x"], "c": {"d": "q"}}}
    places = {
        path: (span.line, span.col, span.end_line, span.end_col)
        for path in [("a",), ("a", "bé", 1), ("a", "c"), ("a", "c", "d")]
        for span in [document.span(path)]
    }
    assert places == {
        ("a",): (1, 1, 1, 2),
        ("a", "bé", 1): (2, 11, 2, 12),
        ("a", "c"): (3, 3, 3, 6),
        ("a", "c", "d"): (3, 12, 3, 15),
    }


def test_what_the_text_lacks_is_placed_at_the_nearest_key_above() -> None:
    document = read("# a comment\na:\n  b: 1\n")
    assert document.span(("a", "x", "y")) == document.key_span(("a",))
    assert (document.span(("z",)).line, document.span(("z",)).col) == (2, 1)


def test_an_empty_value_is_placed_at_its_key() -> None:
    assert read("a:\nb: 1\n").span(("a",)).col == 1


def test_quoted_scalars_are_text() -> None:
    assert read("""{a: "1", b: 'true', c: "", d: |-\n}""").diagnostics
    assert read("a: \"1\"\nb: 'true'\nc: ''\nd: |-\n  5\ne: >-\n  null\n").data() == {
        "a": "1", "b": "true", "c": "", "d": "5", "e": "null",
    }  # fmt: skip


def test_aliases_stand_for_whole_values() -> None:
    document = read("a: &x {k: 1}\nb: *x\n")
    assert document.data() == {"a": {"k": 1}, "b": {"k": 1}}
    assert document.span(("b", "k")).line == 1


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("a: 1\nb: 2\na: 3\n", [("DP003", 3, 1)]),
        ("a: {b: 1, b: 2, b: 3}\n", [("DP003", 1, 11), ("DP003", 1, 17)]),
        ("a: &x {b: 1}\n<<: *x\n", [("DP004", 2, 1)]),
        ("5: a\n", [("DP005", 1, 1)]),
        ("true: a\nnull: b\n~: c\n", [("DP005", 1, 1), ("DP005", 2, 1), ("DP005", 3, 1)]),
        ("? [a, b]\n: 1\n", [("DP005", 1, 3)]),
        ("? {a: b}\n: 1\n", [("DP005", 1, 3)]),
        ("a: 1\n---\nb: 1\n", [("DP006", 2, 1)]),
        ("", [("DP007", 1, 1)]),
        ("# nothing here\n", [("DP007", 1, 1)]),
        ("a: !!int '5'\n", [("DP009", 1, 4)]),
        ("a: !secret x\n", [("DP009", 1, 4)]),
        ("!!map {a: 1}\n", [("DP009", 1, 1)]),
        ("\ufeffa: 1\n", [("DP001", 1, 1)]),
        (b"a: 1\nb: \xff\n", [("DP001", 2, 4)]),
        ("é: 1\nb: \x00\n", [("DP001", 2, 4)]),
        ("a: 1\n".encode("utf-16"), [("DP001", 1, 1)]),
        ("a: 1\n\tb: 2\n", [("DP002", 2, 1)]),
        ("a: [1, 2\n", [("DP002", 2, 1)]),
        ("a: *nowhere\n", [("DP002", 1, 4)]),
        ("a: &x [*x]\n", [("DP002", 1, 8)]),
        ("a: 'x\n", [("DP002", 2, 1)]),
        ("{", [("DP002", 1, 2)]),
        (b"a" * (MAX_BYTES + 1), [("DP008", 1, 1)]),
        ("[" * MAX_DEPTH + "1" + "]" * MAX_DEPTH, []),
        ("[" * 500, [("DP008", 1, MAX_DEPTH + 2)]),
    ],
)
def test_findings(text: str | bytes, found: list[tuple[str, int, int]]) -> None:
    assert findings(text) == found


def test_a_bomb_of_aliases_is_not_expanded() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 12)]
    assert [d.id for d in read("\n".join(lines)).diagnostics] == ["DP008"]


def test_tabs_get_a_remedy() -> None:
    (finding,) = read("a:\n\tb: 2\n").diagnostics
    assert finding.help == "indent with spaces"


def test_what_can_be_read_beside_a_fault_is_read() -> None:
    assert read("a: 1\na: 2\n5: x\nb: 3\n").data() == {"a": 1, "b": 3}
