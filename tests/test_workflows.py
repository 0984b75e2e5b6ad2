"""The release workflow: valid by its schema, and its commands are such as there are."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[1]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
LOCKS = sorted((ROOT / "dualpace" / "build" / "locks").glob("*.txt"))


def check(schema: str, *files: Path) -> None:
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", schema, *files]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout


def test_workflows_and_the_action_are_valid():
    assert WORKFLOWS
    check("vendor.github-workflows", *WORKFLOWS)
    check("custom.github-workflows-require-timeout", *WORKFLOWS)
    check("vendor.github-actions", ROOT / "action.yml")


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.name)
def test_every_file_that_a_workflow_names_is_there(workflow):
    document = yaml.safe_load(workflow.read_text())
    commands = "\n".join(step.get("run", "") for job in document["jobs"].values() for step in job["steps"])
    commands += "\n" + "\n".join(map(str, document["env"].values()))
    named = re.findall(r"(?<![\w/.$-])((?:\.?[a-z]+/)+[\w.-]+)", commands)
    assert {".ci/run", "constraints/cpu.txt", "dualpace/build/locks/cpu.txt"} <= set(named)
    assert [path for path in named if not path.startswith("dist/") and not (ROOT / path).exists()] == []


@pytest.mark.parametrize("lock", LOCKS, ids=lambda path: path.stem)
def test_a_lock_becomes_a_bill_of_materials_with_hashes(lock, tmp_path):
    output = tmp_path / "sbom.json"
    command = [sys.executable, "-m", "cyclonedx_py", "requirements", lock, "--output-reproducible", "-o", output]
    subprocess.run(command, check=True, capture_output=True)
    components = {component["name"]: component for component in json.loads(output.read_text())["components"]}
    assert {"torch", "tokenizers", "uvicorn", "pydantic"} <= components.keys()
    assert all(component["version"] for component in components.values())


def test_locks_name_every_package_of_the_image_by_hash():
    assert {lock.stem for lock in LOCKS} == {"cpu", "cuda"}
    for lock in LOCKS:
        for package in re.split(r"\n(?=\S)", lock.read_text().strip()):
            assert re.match(r"[\w.-]+==\S+ (\\\n {4}--hash=sha256:[0-9a-f]{64} ?)+$", package), package
