"""`dualpace lint` and `dualpace schema` as processes: output, streams, exit codes, start-up time."""

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
GOOD = "specs/qwen3-14b-h100.yaml"
NOTED = "specs/llama-3.1-8b-128k-offload.yaml"
WARNED = "dualpace/lint/examples/DP701-open-to-network/bad.yaml"
WRONG = "dualpace/lint/examples/DP301-gqa-ratio/bad.yaml"


FIXABLE = "dualpace/lint/examples/DP403-rdma-field-ignored/bad.yaml"


def dualpace(*arguments: str, cwd: Path = ROOT, text: str | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "dualpace.cli", *arguments]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(command, cwd=cwd, env=environment, input=text, capture_output=True, text=True)


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ((GOOD,), 0),
        ((NOTED,), 0),
        ((NOTED, "--fail-on", "note"), 1),
        ((WARNED,), 1),
        ((WARNED, "--fail-on", "error"), 0),
        ((GOOD, WRONG), 1),
        ((GOOD, "no-such-file.yaml"), 2),
        (("specs",), 0),
        (("specs/*.yaml", "--fail-on", "note"), 1),
        (("no-such/*.yaml",), 2),
        ((), 2),
        ((GOOD, "--fail-on", "never"), 2),
    ],
)
def test_exit_code(arguments: tuple[str, ...], code: int) -> None:
    assert dualpace("lint", *arguments).returncode == code


def test_clean_specs_say_nothing() -> None:
    done = dualpace("lint", GOOD)
    assert (done.stdout, done.stderr) == ("", "")


def test_a_missing_file_does_not_hide_the_findings_of_others() -> None:
    done = dualpace("lint", "no-such-file.yaml", WRONG)
    assert done.stdout.startswith(f"{WRONG}:15:14: error DP301 gqa-ratio: ")
    assert done.stderr == "dualpace: no-such-file.yaml: No such file or directory\n"


def test_json_is_one_document_for_all_specs() -> None:
    found = json.loads(dualpace("lint", WRONG, WARNED, "--format", "json").stdout)["diagnostics"]
    assert [d["id"] for d in found] == ["DP301", "DP701"]


def test_folders_are_searched_and_nothing_is_linted_twice(tmp_path: Path) -> None:
    for folder in ("a/b", "a/.cache"):
        (tmp_path / folder).mkdir(parents=True)
    for name in ("a/one.yaml", "a/b/two.yml", "a/notes.txt", "a/.cache/three.yaml"):
        (tmp_path / name).write_text("5\n")
    found = json.loads(dualpace("lint", "a", str(tmp_path / "a"), "a/*.yaml", "--format", "json", cwd=tmp_path).stdout)
    assert [d["span"]["file"] for d in found["diagnostics"]] == ["a/b/two.yml", "a/one.yaml"]


def test_stdin() -> None:
    done = dualpace("lint", "-", text=(ROOT / WRONG).read_text())
    assert done.returncode == 1
    assert done.stdout.startswith("<stdin>:15:14: error DP301 gqa-ratio: ")


def test_fix_writes_and_reports_what_is_left(tmp_path: Path) -> None:
    spec = tmp_path / "spec.yaml"
    shutil.copy(ROOT / FIXABLE, spec)
    done = dualpace("lint", "--fix", "spec.yaml", cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "spec.yaml: fixed\n")
    again = dualpace("lint", "--fix", "spec.yaml", cwd=tmp_path)
    assert (again.returncode, again.stdout, again.stderr) == (0, "", "")
    spec.write_text(spec.read_text() + "serving: {host: 0.0.0.0}\n")
    assert "DP701" in dualpace("lint", "--fix", "spec.yaml", cwd=tmp_path).stdout


def test_diff_shows_and_writes_nothing(tmp_path: Path) -> None:
    spec = tmp_path / "spec.yaml"
    shutil.copy(ROOT / FIXABLE, spec)
    before = spec.read_bytes()
    shown = dualpace("lint", "--diff", "spec.yaml", cwd=tmp_path)
    assert shown.returncode == 1
    assert spec.read_bytes() == before
    dualpace("lint", "--fix", "spec.yaml", cwd=tmp_path)
    after = spec.read_bytes()
    spec.write_bytes(before)
    subprocess.run(["patch", "-p0"], cwd=tmp_path, input=shown.stdout, text=True, check=True, capture_output=True)
    assert spec.read_bytes() == after
    assert dualpace("lint", "--diff", "spec.yaml", cwd=tmp_path).returncode == 0


def test_fixed_stdin_goes_to_stdout() -> None:
    text = (ROOT / FIXABLE).read_text()
    done = dualpace("lint", "--fix", "-", text=text + "serving: {host: 0.0.0.0}\n")
    assert done.returncode == 1
    assert "<stdin>" in done.stderr
    assert dualpace("lint", "-", text=done.stdout).stdout.startswith("<stdin>:16:17: warning DP701")


def test_other_commands_end_with_the_findings_of_a_bad_spec(tmp_path: Path) -> None:
    done = dualpace("render", WRONG, "-o", str(tmp_path / "out"))
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.startswith(f"{WRONG}:15:14: error DP301 gqa-ratio: ")
    assert not (tmp_path / "out").exists()


def test_schema_check(tmp_path: Path) -> None:
    assert dualpace("schema", "--check", "specs/dualpace.schema.json").returncode == 0
    stale = tmp_path / "stale.json"
    stale.write_text("{}")
    done = dualpace("schema", "--check", str(stale))
    assert done.returncode == 1
    assert "is out of date: run `dualpace schema >" in done.stderr


def test_a_fault_of_ours_is_exit_code_3() -> None:
    broken = "import dualpace.lint.runner as r; r.lint_file = None; import sys; sys.argv[1:] = ['lint', 'x.yaml']; "
    code = broken + "import dualpace.cli; dualpace.cli.main()"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 3
    assert done.stderr.splitlines()[-1].startswith("dualpace: internal error")


def test_linting_loads_nothing_heavy_and_starts_fast() -> None:
    heavy = "{'torch', 'numpy', 'jinja2', 'rich', 'fastapi', 'dualpace.build', 'dualpace.render', 'dualpace.engine'}"
    code = (
        f"import sys; sys.argv[1:] = ['lint', '{GOOD}']; import dualpace.cli\n"
        "try: dualpace.cli.main()\n"
        f"except SystemExit: print(sorted({heavy} & set(sys.modules)))"
    )
    start = time.monotonic()
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout == "[]\n"
    assert time.monotonic() - start < 5  # 0.25 s on an idle core; loaded CI machines get room
