"""Whatever a file holds, reading it gives a spec or findings within the text, never an exception."""

from pathlib import Path

import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dualpace.diagnostic import Severity
from dualpace.lint.reports import FORMATS, report
from dualpace.lint.runner import lint_document, repair
from dualpace.spec import compose as module
from dualpace.spec.compose import compose
from dualpace.spec.document import Mapping
from dualpace.spec.load import load

SPECS = [path.read_bytes() for path in sorted((Path(__file__).parents[2] / "specs").glob("*.yaml"))]
FRAGMENTS = [
    b"\t", b"\n", b": ", b"- ", b"{", b"}", b"[", b"]", b"&a ", b"*a", b"!!int ", b"<<: ", b"? ", b"|\n", b">-\n", b"'",
    b'"', b"#", b"# dualpace: allow DP301 because x", b"---\n", b"...\n", b"%YAML 1.1\n", b"\xff", b"\x00",
    b"0", b"-1", b".inf", b".nan", b"9" * 400, b"null", b"true", b"~", b"1:10", b"0o17", "\u2028é\U0001f600".encode(),
    b"model: ", b"shape: ", b"attention: ", b"auto", b"40", b"40GiB", b"{random: 0}", b"\\ud800", b"\r", b"\x85",
    b"\xef\xbb\xbf", b"x" * 5000, b"\nserving: {chat_template: ../a, api_key_file: ~/b}\n", b"path: ", b"/", b"..",
]  # fmt: skip


@st.composite
def mutated(draw: st.DrawFn) -> bytes:
    """A shipped spec with a few pieces cut, repeated or replaced."""
    text = draw(st.sampled_from(SPECS))
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(text)))
        end = min(len(text), start + draw(st.integers(0, 12)))
        text = text[:start] + draw(st.sampled_from(FRAGMENTS) | st.binary(max_size=4)) + text[end:]
    return text


def check(data: bytes) -> None:
    document = compose(data, "a.yaml")
    result = lint_document(document, Path("/nonexistent"))
    lines = document.lines()
    assert (result.plan is None) == any(d.severity == Severity.ERROR for d in result.diagnostics)
    assert (load(document).spec is None) == (not isinstance(document.root, Mapping))
    for diagnostic in result.diagnostics:
        span = diagnostic.span
        assert 1 <= span.line <= len(lines)
        assert 1 <= span.col <= len(lines[span.line - 1]) + 1
        assert (span.line, span.col) <= (span.end_line, span.end_col)
        assert diagnostic.message
    repaired = repair(result, Path("/nonexistent"))
    assert len(repaired.document.diagnostics) <= len(document.diagnostics)
    for format_ in FORMATS:
        assert report(format_, [result]).replace("\n", "").isprintable()


@given(mutated())
@settings(max_examples=400, deadline=None)
def test_mutated_specs(data: bytes) -> None:
    check(data)


@given(st.binary(max_size=64) | st.lists(st.sampled_from(FRAGMENTS), max_size=12).map(b"".join))
@example(b"---")
@example(b"[" * 100_000)
@example(b"a: " * 1000)
@example(b"{" * 100_000)
@example(b"- " * 50_000)
@settings(max_examples=400, deadline=None)
def test_arbitrary_bytes(data: bytes) -> None:
    check(data)


@given(mutated())
@settings(max_examples=50, deadline=None)
def test_both_parsers_agree(data: bytes) -> None:
    documents = []
    with pytest.MonkeyPatch.context() as patch:
        for parser in {yaml.Loader, getattr(yaml, "CLoader", yaml.Loader)}:
            patch.setattr(module, "_PARSER", parser)
            documents.append(compose(data, "a.yaml"))
    if not any(document.diagnostics for document in documents):
        assert all(document.data() == documents[0].data() for document in documents)
