"""The specs that ship lint clean, state published shapes and follow the published schema."""

import json
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

from dualpace.diagnostic import Severity
from dualpace.lint.runner import lint_file
from dualpace.spec.compose import read_document
from dualpace.spec.schema import schema_text

SPECS = Path(__file__).parents[2] / "specs"
EXAMPLES = sorted(SPECS.glob("*.yaml"))
SCHEMA = SPECS / "dualpace.schema.json"


def test_the_seven_deployments_are_there() -> None:
    assert [path.stem for path in EXAMPLES] == [
        "llama-3.1-8b-128k-offload",
        "llama-3.1-8b-h200",
        "llama-3.1-8b-smartnic",
        "llama-3.2-1b-rtx3060",
        "quickstart",
        "qwen2.5-7b-a100",
        "qwen3-14b-h100",
    ]


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_spec_lints_clean_and_is_planned(path: Path) -> None:
    result = lint_file(path)
    assert [d for d in result.diagnostics if d.severity > Severity.NOTE] == []
    assert result.plan is not None
    assert result.plan.name == path.stem


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_spec_names_the_schema_for_editors_and_follows_it(path: Path) -> None:
    assert path.read_text().startswith("# yaml-language-server: $schema=dualpace.schema.json\n")
    Draft202012Validator(json.loads(SCHEMA.read_text())).validate(read_document(path).data())


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("quickstart", 268_098_176),
        ("llama-3.1-8b-h200", 8_030_261_248),
        ("qwen2.5-7b-a100", 7_615_616_512),
        ("qwen3-14b-h100", 14_768_307_200),
        ("llama-3.2-1b-rtx3060", 1_235_814_400),
    ],
)
def test_shape_has_the_published_number_of_parameters(name: str, parameters: int) -> None:
    plan = lint_file(SPECS / f"{name}.yaml").plan
    assert plan is not None
    assert plan.parameters == parameters


def test_published_schema_is_up_to_date() -> None:
    assert SCHEMA.read_text(encoding="utf-8") == schema_text()
