"""A little of each fuzzer's time. `make fuzz` gives them five minutes each."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("atheris", reason="the fuzzers need atheris, which has wheels for Linux on x86-64")
CORPUS = Path(__file__).parent / "corpus"
ROOT = Path(__file__).parents[2]
SECONDS = 15
# What the corpus and its neighbours take before memory is level is more than this.
GROWTH_MIB = 32
# A process begins with the peak of whoever started it as its own, and this one may have had gigabytes: a shell between
# the two has a peak of its own.
APART = ("sh", "-c", '"$@"; exit $?', "sh")


@pytest.mark.parametrize(("module", "name"), [("http_bytes", "http"), ("json_bodies", "json")])
def test_the_corpus_and_its_neighbours_break_nothing_and_take_no_memory(module: str, name: str, tmp_path: Path):
    found = tmp_path / "found"
    found.mkdir()
    command = [sys.executable, "-m", f"tests.fuzz.{module}", "-seed=1", "-max_len=4096", f"-max_total_time={SECONDS}"]
    result = subprocess.run(
        [*APART, *command, f"-artifact_prefix={tmp_path}/", found],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert result.returncode == 0, result.stderr[-4000:]
    seeds = len(list((CORPUS / name).iterdir()))
    loaded, least = re.search(r"INITED .* corp: (\d+)/.* rss: (\d+)Mb", result.stderr).groups()
    assert seeds / 2 < int(loaded) <= seeds  # the others take no way of their own
    most = int(re.findall(r"rss: (\d+)Mb", result.stderr)[-1])
    assert most - int(least) < GROWTH_MIB
