"""Commands on terminals that are not whole."""

import subprocess
import sys
from pathlib import Path

import pytest

SPEC = Path(__file__).parents[2] / "specs" / "quickstart.yaml"


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&-", ">&- 2>&- <&-"])
def test_closed_streams_change_no_exit_code(closed: str) -> None:
    command = f"exec {sys.executable} -m dualpace.cli lint {SPEC} {closed}"
    result = subprocess.run(["sh", "-c", command], capture_output=True, text=True, cwd=SPEC.parents[1], check=False)
    assert (result.returncode, result.stderr) == (0, "")


def test_render_leaves_folders_alone_that_hold_something_else(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    command = [sys.executable, "-m", "dualpace.cli", "render", SPEC, "-o", tmp_path]
    result = subprocess.run(command, capture_output=True, text=True, cwd=SPEC.parents[1], check=False)
    assert result.returncode == 2
    assert "mine.txt" in result.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]
