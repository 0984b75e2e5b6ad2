"""The world under libFuzzer: what it has found interesting so far, and a little more each time."""

import shutil
import subprocess

import pytest

from .engines import CLANGS, HERE, compile_program, write_sources
from .plans import TIGHT

CORPUS = HERE / "corpus"
FLAGS = ("-g", "-fsanitize=fuzzer,address,undefined", "-fno-sanitize-recover=all")


@pytest.fixture(scope="module")
def fuzzer(tmp_path_factory):
    compiler = next(filter(shutil.which, CLANGS), None)
    if compiler is None:
        pytest.skip("libFuzzer needs clang and its runtime, as in the packages clang-14 and libclang-rt-14-dev")
    folder = tmp_path_factory.mktemp("fuzz")
    write_sources(TIGHT, folder)
    return compile_program(folder, "fuzz.cpp", *FLAGS, compiler=compiler)


def test_the_corpus_and_its_neighbours_break_nothing(fuzzer, tmp_path):
    seeds = sorted(CORPUS.iterdir())
    # The peak that libFuzzer reads is inherited from this process, which may hold gigabytes: bound allocations instead.
    bounds = ["-runs=4000", "-max_len=1024", "-rss_limit_mb=0", "-malloc_limit_mb=1024"]
    command = [fuzzer, "-seed=1", *bounds, f"-artifact_prefix={tmp_path}/", tmp_path, CORPUS]
    result = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stderr[-4000:]
    assert f"INFO: seed corpus: files: {len(seeds)} " in result.stderr
