"""The GitHub action and the pre-commit hooks, as their hosts run them: installed from this checkout."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml
from pydantic_sarif.model import StaticAnalysisResultsFormatSarifVersion210JsonSchema

from dualpace.lint.explain import CATALOGUE, explanation

from .corpus import EXAMPLES

ROOT = Path(__file__).parents[2]
ACTION = yaml.safe_load((ROOT / "action.yml").read_text())
NO_INDEX = re.compile("No matching distribution|Could not find a version|Connection|Temporary failure")


class Step(NamedTuple):
    """A step's end: `code` is None if it was skipped, `given` what a step that uses an action is given."""

    name: str
    code: int | None
    output: str
    given: dict[str, str]


def run_action(workspace: Path, temporary: Path, **inputs: str) -> list[Step]:
    """What a runner does with a composite action: expressions, conditions, shells that stop at the first failure."""
    values = {name: inputs.get(name.replace("-", "_"), given["default"]) for name, given in ACTION["inputs"].items()}
    environment = {**os.environ, "GITHUB_ACTION_PATH": str(ROOT), "RUNNER_TEMP": str(temporary)}
    environment["PATH"] = f"{Path(sys.executable).parent}:{environment['PATH']}"
    environment.pop("PYTHONPATH", None)
    return list(_steps(ACTION["runs"]["steps"], values, workspace, environment))


def _steps(
    steps: list[dict[str, Any]], values: dict[str, str], workspace: Path, environment: dict[str, str]
) -> Iterator[Step]:
    def filled(text: str) -> str:
        return re.sub(r"\$\{\{ inputs\.([\w-]+) }}", lambda match: values[match[1]], text)

    failed = reported = False
    for step in steps:
        given = {name: filled(value) for name, value in step.get("with", step.get("env", {})).items()}
        if "uses" in step:
            assert step["if"] == "always() && steps.report.outcome == 'success' && inputs.upload == 'true'"
            yield Step(step["name"], 0 if reported and values["upload"] == "true" else None, step["uses"], given)
        elif failed:
            yield Step(step["name"], None, "", given)
        else:
            command = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]]
            done = subprocess.run(
                command, cwd=workspace, env={**environment, **given}, text=True, stdout=-1, stderr=subprocess.STDOUT
            )
            if step["name"] == "Install" and NO_INDEX.search(done.stdout):
                pytest.skip("pip reaches no package index")
            failed |= done.returncode != 0
            reported |= step.get("id") == "report" and done.returncode == 0
            yield Step(step["name"], done.returncode, done.stdout, given)


@pytest.fixture(scope="module")
def temporary(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("runner")


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    (tmp_path / "specs").mkdir()
    for case in ("DP301-gqa-ratio", "DP403-rdma-field-ignored"):
        shutil.copy(EXAMPLES / case / "bad.yaml", tmp_path / "specs" / f"{case}.yaml")
    shutil.copy(EXAMPLES / "DP301-gqa-ratio" / "good.yaml", tmp_path / "specs" / "good.yaml")
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    subprocess.run(["git", "add", "."], cwd=tmp_path, check=True)
    return tmp_path


def test_action_annotates_fails_and_uploads(repository: Path, temporary: Path) -> None:
    install, report, lint, upload = run_action(repository, temporary)
    assert (install.code, report.code, lint.code, upload.code) == (0, 0, 1, 0)
    assert [line.partition("::")[2].partition(" ")[0] for line in lint.output.splitlines()] == [
        "error",
        "warning",
        "warning",
    ]
    assert "file=specs/DP301-gqa-ratio.yaml,line=15," in lint.output
    log = StaticAnalysisResultsFormatSarifVersion210JsonSchema.model_validate_json(
        (repository / upload.given["sarif_file"]).read_bytes()
    )
    assert [result.ruleId for result in log.runs[0].results] == ["DP301", "DP403", "DP403"]
    installed = [temporary / "dualpace" / "bin" / "dualpace", "rules", "DP301"]
    explained = subprocess.run(installed, cwd=repository, capture_output=True, text=True, check=True).stdout
    assert explained == explanation(next(entry for entry in CATALOGUE if entry.id == "DP301"))


def test_action_takes_patterns_and_passes_what_is_allowed_to_pass(repository: Path, temporary: Path) -> None:
    inputs = {"specs": "specs/good.yaml specs/DP403*.yaml", "fail_on": "error", "upload": "false"}
    steps = run_action(repository, temporary, **inputs)
    assert [step.code for step in steps] == [0, 0, 0, None]
    assert "DP403" in steps[2].output


def test_action_fails_where_there_is_nothing_to_lint(repository: Path, temporary: Path) -> None:
    steps = run_action(repository, temporary, specs="no-such-folder")
    assert [step.code for step in steps] == [0, 2, None, None]


@pytest.mark.parametrize(
    ("hook", "code", "said"),
    [
        ("dualpace-lint", 1, "specs/DP301-gqa-ratio.yaml:15:14: error DP301"),
        ("dualpace-fix", 1, "files were modified by this hook"),
    ],
)
def test_pre_commit_hook(
    hook: str, code: int, said: str, repository: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("pre-commit installs hooks from a git checkout")
    environment = {**os.environ, "PRE_COMMIT_HOME": str(tmp_path_factory.getbasetemp() / "pre-commit")}
    environment.pop("PYTHONPATH", None)
    command = [sys.executable, "-m", "pre_commit", "try-repo", str(ROOT), hook, "--all-files"]
    done = subprocess.run(command, cwd=repository, env=environment, capture_output=True, text=True)
    if NO_INDEX.search(done.stdout + done.stderr):
        pytest.skip("pip reaches no package index")
    assert done.returncode == code, done.stderr
    assert said in done.stdout
    assert "good.yaml" not in done.stdout
