"""Reports: what each format says of the same findings."""

import json
from pathlib import Path
from typing import Any

from pydantic_sarif.model import StaticAnalysisResultsFormatSarifVersion210JsonSchema

from dualpace.lint import reports
from dualpace.lint.runner import lint_document
from dualpace.spec.compose import compose

SOUND = """\
model:
  weights: {random: 0}
  shape: {family: llama, layers: 2, hidden: 512, heads: 8, kv_heads: 2, intermediate: 1024, vocab: 1000, context: 4096}
target: {cpu: true}
"""


def report(format_: str, text: str) -> str:
    return reports.report(format_, [lint_document(compose(text.encode(), "a.yaml"), Path())])


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
                "help": 'write `name: "5"`',
                "span": {"file": "a.yaml", "line": 1, "col": 7, "end_line": 1, "end_col": 8},
                "fix": [{"span": {"file": "a.yaml", "line": 1, "col": 7, "end_line": 1, "end_col": 8}, "text": '"5"'}],
            }
        ]
    }


def test_github_gets_errors_first_and_escaped() -> None:
    text = SOUND + "name: a\nserving: {host: 0.0.0.0}\nnic: {slots: 1000, transport: 'a%,:b'}\n"
    lines = report("github", text).splitlines()
    assert lines[:2] == [
        "::error file=a.yaml,line=7,endLine=7,col=14,endColumn=18,title=DP401 slots-power-of-two::"
        "nic.slots is 1000, not a power of two%0Awrite 512 or 1024",
        "::error file=a.yaml,line=7,endLine=7,col=31,endColumn=38,title=DP106 unknown-value::"
        'nic.transport is "a%25,:b": must be one of shm, rdma%0Afor example `transport: shm`: '
        "Shared memory with a local frontend, or one-sided RDMA.",
    ]
    assert [line.split(" ")[0] for line in lines] == ["::error", "::error", "::warning"]


def test_github_shows_ten_of_a_kind_so_the_tenth_counts_the_others() -> None:
    text = SOUND + "name: a\nnic: {" + ", ".join(f"k{n}: 1" for n in range(12)) + "}\n"
    lines = report("github", text).splitlines()
    assert [line.startswith("::error") for line in lines] == [True] * 10 + [False] * (len(lines) - 10)
    assert lines[9] == "::error title=dualpace::3 more, in the log of this step"
    assert [line for line in lines if " error DP101 " in line] == [
        f"a.yaml:6:{column}: error DP101 unknown-key: nic has no field `k{n}`"
        for n, column in ((9, 70), (10, 77), (11, 85))
    ]


def sarif(text: str, file: str = "a.yaml") -> dict[str, Any]:
    log = json.loads(reports.report("sarif", [lint_document(compose(text.encode(), file), Path())]))
    StaticAnalysisResultsFormatSarifVersion210JsonSchema.model_validate(log)
    (run,) = log["runs"]
    assert isinstance(run, dict)
    return run


def test_sarif_follows_its_schema_and_names_rules_places_and_fixes() -> None:
    run = sarif(f"name: 5\n{SOUND}", "deployments/my spec.yaml")
    (result,) = run["results"]
    region = {"startLine": 1, "startColumn": 7, "endLine": 1, "endColumn": 8}
    artifact = {"uri": "deployments/my%20spec.yaml", "uriBaseId": "%SRCROOT%"}
    assert run["columnKind"] == "unicodeCodePoints"
    assert run["tool"]["driver"]["rules"][result["ruleIndex"]]["id"] == result["ruleId"] == "DP104"
    assert result["locations"] == [{"physicalLocation": {"artifactLocation": artifact, "region": region}}]
    (change,) = result["fixes"][0]["artifactChanges"]
    assert change["replacements"] == [{"deletedRegion": region, "insertedContent": {"text": '"5"'}}]


def test_sarif_is_the_same_for_the_same_findings_and_valid_without_any() -> None:
    assert report("sarif", "name: 5\n") == report("sarif", "name: 5\n")
    assert sarif(f"name: a\n{SOUND}")["results"] == []


def test_colours_leave_the_text_as_it_is() -> None:
    from dualpace.lint.reports.colour import Highlighter

    text = report("text", "name: 5\n")
    highlighted = Highlighter()(text)
    assert highlighted.plain == text
    assert {str(span.style) for span in highlighted.spans} == {"dp.place", "dp.error", "dp.help"}
