"""Commands that the docs, benchmarks and scripts name run modules that exist."""

import re
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FILES = [
    ROOT / "Makefile",
    *ROOT.glob("*.md"),
    *(path for folder in ("docs", "benchmarks", "scripts") for path in (ROOT / folder).rglob("*.*")),
]
RUN = re.compile(r"""-m["']?,?\s+["']?((?:dualpace|benchmarks|scripts|tests)(?:\.\w+)*)""")


@pytest.mark.parametrize(
    "path", [path for path in FILES if path.suffix in (".md", ".py", "")], ids=lambda path: path.name
)
def test_modules_that_are_run_exist(path):
    named = set(RUN.findall(path.read_text(encoding="utf-8")))
    assert [name for name in sorted(named) if find_spec(name) is None] == []


def test_commands_are_found():
    assert RUN.findall('[sys.executable, "-m", "dualpace.engine", bundle]') == ["dualpace.engine"]
    assert RUN.findall("`python -m benchmarks.lint -o x`") == ["benchmarks.lint"]
