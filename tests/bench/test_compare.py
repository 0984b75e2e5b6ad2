"""Pairs of runs: what differs, by how much, and whether chance explains it."""

import math
import random
import statistics

import pytest

from dualpace.bench.compare import compare
from dualpace.bench.load import Load
from dualpace.bench.report import comparison_report
from dualpace.bench.result import Figure, Result, Run

from .test_sweep import played


def run(seed: int, tokens: float, wide: float = 0.0, rate: float = 8) -> Run:
    figure = Figure(value=tokens, low=tokens * (1 - wide), high=tokens * (1 + wide)) if wide else Figure(value=tokens)
    load = Load(url="http://x", model="m", rate=rate, seed=seed)
    return played(load).model_copy(update={"tokens_per_s": figure})


def result(label: str, *runs: Run) -> Result:
    return Result(label=label, version="0", machine={}, server={}, runs=runs)


def tokens(a: Result, b: Result):
    return next(ratio for ratio in compare(a, b) if ratio.figure == "tokens/s")


@pytest.mark.parametrize(("gain", "differs"), [(1.1, True), (1.0, False)])
def test_pairs_cancel_what_their_seeds_have_in_common(gain, differs):
    dice = random.Random(1)
    shared = [100 * math.exp(dice.gauss(0, 0.5)) for _ in range(8)]
    a = result("a", *(run(seed, each) for seed, each in enumerate(shared)))
    b = result("b", *(run(seed, each * gain * math.exp(dice.gauss(0, 0.01))) for seed, each in enumerate(shared)))
    found = tokens(a, b)
    assert found.pairs == 8
    assert found.ratio == pytest.approx(gain, rel=0.02)
    assert found.low <= gain <= found.high
    assert found.differs is differs


def test_a_single_pair_has_the_interval_of_its_runs_or_none():
    found = tokens(result("a", run(0, 100, 0.03)), result("b", run(0, 110, 0.04)))
    assert (math.log(found.high) - math.log(found.low)) / 2 == pytest.approx(0.05, rel=0.02)
    assert found.differs
    assert tokens(result("a", run(0, 100)), result("b", run(0, 110))).low is None


@pytest.mark.parametrize(("pairs", "t"), [(2, 12.706), (16, 2.131), (17, 2.120), (31, 2.042)])
def test_the_interval_of_pairs_is_students(pairs, t):
    ratios = [1.2, 1 / 1.2] * (pairs // 2) + [1.0] * (pairs % 2)
    found = tokens(
        result("a", *(run(seed, 100) for seed in range(pairs))),
        result("b", *(run(seed, 100 * ratio) for seed, ratio in enumerate(ratios))),
    )
    half = t * statistics.stdev(map(math.log, ratios)) / math.sqrt(pairs)
    assert math.log(found.high / found.low) / 2 == pytest.approx(half, rel=0.01)


def test_runs_are_paired_by_load_and_seed_alone():
    a = result("a", run(0, 100), run(1, 100), run(0, 50, rate=4))
    b = result("b", run(1, 120), run(2, 500), run(0, 10, rate=16))
    assert [(ratio.load, ratio.ratio) for ratio in compare(a, b) if ratio.figure == "tokens/s"] == [
        ("chat, 8 requests/s", pytest.approx(1.2))
    ]


def test_the_report_stars_what_differs():
    text = comparison_report(
        compare(result("old", run(0, 100, 0.01)), result("new", run(0, 120, 0.01))), ("old", "new")
    )
    lines = {line.split()[0]: line.split()[1:] for line in text.splitlines() if line.startswith("  ") and "/" in line}
    assert " ".join(lines["tokens/s"]) == "100.00 120.00 1.200 (1.183 to 1.217) *"
    assert " ".join(lines["requests/s"]) == "8.00 8.00 1.000 (?)"
