"""The release workflow: valid by its schema, and its steps do what they say where they can be taken here."""

import json
import os
import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import pytest
import yaml

from dualpace.files import file_digest

ROOT = Path(__file__).parents[1]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
RELEASE = ROOT / ".github" / "workflows" / "release.yml"
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


def test_nothing_that_an_auditor_finds_is_wrong_with_them():
    """Actions by the hash of their commit, no expression inside a script, no more permissions than are used."""
    command = [Path(sys.executable).with_name("zizmor"), "--offline", "--no-progress", *WORKFLOWS, ROOT / "action.yml"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout


def release_step(job: str, name: str) -> dict[str, Any]:
    (step,) = (step for step in yaml.safe_load(RELEASE.read_text())["jobs"][job]["steps"] if step.get("name") == name)
    return dict(step)


def take(step: dict[str, Any], folder: Path) -> None:
    """Run `step` in `folder` as the workflow does, with this environment's programs."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = os.environ | {"PATH": path} | step.get("env", {})
    command = ["bash", "-eo", "pipefail", "-c", step["run"]]
    ended = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr


def test_the_package_that_is_published_is_whole_and_the_same_every_time(tmp_path):
    checkout = tmp_path / "checkout"
    subprocess.run(["git", "clone", "-q", ROOT, checkout], check=True)
    digests = set()
    for _ in range(2):
        take(release_step("package", "Build"), checkout)
        (wheel,), (source,) = checkout.glob("dist/*.whl"), checkout.glob("dist/*.tar.gz")
        digests.add((file_digest(wheel), file_digest(source)))
    assert len(digests) == 1
    tracked = subprocess.run(["git", "ls-files"], cwd=checkout, check=True, capture_output=True, text=True)
    of_package = {name for name in tracked.stdout.splitlines() if name.startswith("dualpace/")}
    with zipfile.ZipFile(wheel) as opened:
        assert of_package | {"dualpace/build/Dockerfile"} <= set(opened.namelist())
        assert opened.read("dualpace/build/Dockerfile") == (ROOT / "Dockerfile").read_bytes()
    with tarfile.open(source) as archive:
        inside = {name.partition("/")[2] for name in archive.getnames()}
        assert of_package | {"Dockerfile", "README.md", "LICENSE"} <= inside


def test_what_is_in_the_image_is_listed_by_version_and_hash(tmp_path):
    (tmp_path / "dualpace").symlink_to(ROOT / "dualpace")
    take(release_step("image", "What is in it"), tmp_path)
    components = json.loads((tmp_path / "sbom.json").read_text())["components"]
    assert {"torch", "tokenizers", "uvicorn", "pydantic"} <= {component["name"] for component in components}
    for component in components:
        assert component["version"]
        hashes = [found["alg"] for one in component["externalReferences"] for found in one.get("hashes", [])]
        assert "SHA-256" in hashes, component["name"]


def test_locks_name_every_package_of_the_image_by_hash():
    assert {lock.stem for lock in LOCKS} == {"cpu", "cuda"}
    for lock in LOCKS:
        for package in re.split(r"\n(?=\S)", lock.read_text().strip()):
            assert re.match(r"[\w.-]+==\S+ (\\\n {4}--hash=sha256:[0-9a-f]{64} ?)+$", package), package
