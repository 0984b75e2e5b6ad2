"""Intervals hold what they should as often as they say, for independent values and for ones that queue together."""

import numpy as np
import pytest

from dualpace.bench.record import BINS, BLOCKS, bin_of
from dualpace.bench.statistics import histogram_quantile, needed, quantile, rate, share

RUNS = 300


def independent(dice: np.random.Generator, n: int) -> np.ndarray:
    return dice.exponential(size=n)


def alike(dice: np.random.Generator, n: int) -> np.ndarray:
    """A chain in which neighbours are alike; each value alone is normal."""
    shocks = dice.normal(size=n)
    values = np.empty(n)
    values[0] = shocks[0]
    for i in range(1, n):
        values[i] = 0.9 * values[i - 1] + np.sqrt(1 - 0.81) * shocks[i]
    return values


TRUTH = {independent: -np.log(0.1), alike: 1.2816}


@pytest.mark.parametrize("draw", [independent, alike])
def test_the_interval_of_p90_holds_the_truth(draw):
    dice = np.random.default_rng(1)
    found = [quantile(draw(dice, 2000), 0.9) for _ in range(RUNS)]
    held = np.mean([each.low <= TRUTH[draw] <= each.high for each in found])
    assert 0.90 <= held <= 0.99


def test_an_interval_that_ignored_neighbours_would_not():
    dice = np.random.default_rng(1)
    widths = {draw: np.mean([np.ptp(quantile(draw(dice, 2000), 0.5)[1:]) for _ in range(50)]) for draw in TRUTH}
    shuffled = []
    for _ in range(50):
        values = alike(dice, 2000)
        dice.shuffle(values)
        shuffled.append(np.ptp(quantile(values, 0.5)[1:]))
    assert widths[alike] > 2.5 * np.mean(shuffled)


@pytest.mark.parametrize(("p", "least"), [(0.5, 6), (0.9, 36), (0.99, 368), (0.999, 3688)])
def test_a_quantile_needs_enough_values(p, least):
    values = np.random.default_rng(0).permutation(4000).astype(float)
    assert needed(p) == least
    assert quantile(values[: least - 1], p).high is None
    assert quantile(values[:least], p).high is not None


def test_a_histogram_has_the_quantiles_of_its_gaps():
    dice = np.random.default_rng(2)
    gaps = dice.lognormal(-5, 1, (BLOCKS, 2000))
    counts = np.zeros((BLOCKS, BINS), np.int64)
    for block, mine in zip(counts, gaps, strict=True):
        np.add.at(block, bin_of(mine), 1)
    for p in (0.01, 0.5, 0.9, 0.99, 0.999):
        found, exact = histogram_quantile(counts, p), quantile(gaps.ravel(), p)
        assert found == pytest.approx(exact, rel=0.01)


def test_gaps_of_which_none_is_known_to_be_later_have_no_interval():
    counts = np.zeros((BLOCKS, BINS), np.int64)
    np.add.at(counts[0], bin_of(np.random.default_rng(4).lognormal(-5, 1, 4000)), 1)
    found = histogram_quantile(counts, 0.5)
    assert found.value == pytest.approx(np.exp(-5), rel=0.1)
    assert (found.low, found.high) == (None, None)


def test_a_share_and_a_rate_have_intervals_around_them():
    holds = np.random.default_rng(3).random(1000) < 0.8
    found = share(holds)
    assert found.low < 0.8 < found.high
    counts = np.random.default_rng(3).poisson(50, 400)
    found = rate(counts, 40.0)
    assert found.value == counts.sum() / 40
    assert found.low < 500 < found.high
    assert found.high - found.low < 30
    assert rate(counts[:10], 1.0).low is None


def test_every_slot_counts_for_a_rate_and_few_events_say_nothing():
    late = np.repeat([10, 1000], [20, 8])
    found = rate(late, 2.8)
    assert found.low < found.value < found.high
    assert found.high - found.low > found.value
    assert rate(np.array([0] * 20 + [1, 0, 1] + [0] * 5), 2.8) == (2 / 2.8, None, None)
