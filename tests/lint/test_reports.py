"""Reports: what each format says of the same findings."""

import json
from pathlib import Path

from dualpace.lint.reports import REPORTS
from dualpace.lint.runner import lint_document
from dualpace.spec.compose import compose

SOUND = """\
model:
  weights: {random: 0}
  shape: {family: llama, layers: 2, hidden: 512, heads: 8, kv_heads: 2, intermediate: 1024, vocab: 1000, context: 4096}
target: {cpu: true}
"""


def report(format_: str, text: str) -> str:
    return REPORTS[format_]([lint_document(compose(text.encode(), "a.yaml"), Path())])


def test_text_marks_the_place_under_tabs_and_hides_control_characters() -> None:
    assert report("text", "\tname: x\n").splitlines()[1:3] == ["     name: x", "    ^"]
    assert "\x1b" not in report("text", "name: \x1b[31m\n")


def test_text_keeps_a_finding_of_odd_text_on_its_lines() -> None:
    lines = report(
        "text", 'name: a\nmodel: {hub: a/b}\ntarget: {cpu: true}\nserving: {host: "a\\n\\e[31mb"}\n'
    ).splitlines()
    assert len(lines) == 8
    assert 'serving.host is "a  [31mb"' in lines[4]


def test_text_shows_no_source_where_there_is_none() -> None:
    assert report("text", "") == ("a.yaml:1:1: error DP007 empty: the file holds no spec\n  help: begin with `name:`\n")


def test_json_has_every_part_of_a_finding() -> None:
    assert json.loads(report("json", f"name: 5\n{SOUND}")) == {
        "diagnostics": [
            {
                "id": "DP104",
                "slug": "wrong-type",
                "severity": "error",
                "message": "name is 5: must be text like quickstart",
                "help": "for example `name: quickstart`: "
                "Name of the deployment: lower-case letters, digits, dots and hyphens.",
                "span": {"file": "a.yaml", "line": 1, "col": 7, "end_line": 1, "end_col": 8},
            }
        ]
    }


def test_colours_leave_the_text_as_it_is() -> None:
    from dualpace.lint.reports.colour import Highlighter

    text = report("text", "name: 5\n")
    highlighted = Highlighter()(text)
    assert highlighted.plain == text
    assert {str(span.style) for span in highlighted.spans} == {"dp.place", "dp.error", "dp.help"}
