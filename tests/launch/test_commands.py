"""The commands as a user meets them: what they write, refuse and return."""

import subprocess
import sys

from dualpace.render.sources import render
from tests.plans import SPECS, example


def dualpace(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "dualpace.cli", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_render_writes_every_source_and_names_it(tmp_path):
    result = dualpace("render", SPECS / "llama-3.1-8b-h200.yaml", "-o", tmp_path)
    assert result.returncode == 0
    files = {path.relative_to(tmp_path).as_posix(): path.read_text() for path in tmp_path.rglob("*") if path.is_file()}
    assert files == render(example("llama-3.1-8b-h200"))
    assert set(result.stdout.splitlines()) == {str(tmp_path / path) for path in files}


def test_a_folder_that_is_no_bundle_is_named(tmp_path):
    result = dualpace("serve", tmp_path)
    assert result.returncode == 2
    assert result.stderr == f"dualpace: {tmp_path} is not a bundle: it has no manifest.json; run `dualpace build`\n"
