"""The world under libFuzzer: what it has found interesting so far, and a little more each time."""

import shutil
import subprocess

import pytest

from tests.recall.plans import SERVED

from .engines import CLANGS, HERE, compile_program, write_sources
from .plans import TIGHT

# Plan -> what its fuzzer has found interesting, and how much of it is tried beside. Slow rows are slow here too.
CORPORA = {TIGHT: (HERE / "corpus", 4000), SERVED: (HERE / "corpus_slow", 600)}
FLAGS = ("-g", "-fsanitize=fuzzer,address,undefined", "-fno-sanitize-recover=all")


@pytest.fixture(scope="module", params=CORPORA, ids=lambda plan: plan.name)
def fuzzed(request, tmp_path_factory):
    """The fuzzer of a plan, its corpus and the number of its runs."""
    compiler = next(filter(shutil.which, CLANGS), None)
    if compiler is None:
        pytest.skip("libFuzzer needs clang and its runtime, as in the packages clang-14 and libclang-rt-14-dev")
    folder = tmp_path_factory.mktemp("fuzz")
    write_sources(request.param, folder)
    return compile_program(folder, "fuzz.cpp", *FLAGS, compiler=compiler), *CORPORA[request.param]


def test_the_corpus_and_its_neighbours_break_nothing(fuzzed, tmp_path):
    fuzzer, corpus, runs = fuzzed
    seeds = sorted(corpus.iterdir())
    # The peak that libFuzzer reads is inherited from this process, which may hold gigabytes: bound allocations instead.
    bounds = [f"-runs={runs}", "-max_len=1024", "-rss_limit_mb=0", "-malloc_limit_mb=1024"]
    command = [fuzzer, "-seed=1", *bounds, f"-artifact_prefix={tmp_path}/", tmp_path, corpus]
    result = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stderr[-4000:]
    assert f"INFO: seed corpus: files: {len(seeds)} " in result.stderr
