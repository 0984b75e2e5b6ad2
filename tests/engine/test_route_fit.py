"""Fitting the constants of attention's cost model, on made-up measurements."""

import random

import pytest

from dualpace.engine.route_fit import Measured, fit, relative_error
from dualpace.plan.attention_cost import SeenKeys, route_seconds, split_work, workqueue_work
from dualpace.plan.plan import KernelCost

TRUE = KernelCost(start=7e-6, key=1.2e-10, tail_key=1.5e-8, partial=2e-9, merge=5e-8)


def works(seed=0):
    """What both routes make of batches of one row to many, short and long."""
    draw = random.Random(seed)
    for count in (1, 2, 4, 8, 32, 128):
        for most in (500, 4000, 30_000, 120_000):
            seen = [SeenKeys(0, draw.randint(most // 2, most)) for _ in range(count)]
            yield workqueue_work(seen, 8, 264)
            yield from (split_work(seen, 8, size, 264) for size in (256, 2048, 16384, 131072))


def measurements(cost=TRUE, noise=0.0, seed=0):
    draw = random.Random(seed)
    return [Measured(work, route_seconds(cost, work) * (1 + draw.gauss(0, noise))) for work in works(seed)]


@pytest.mark.parametrize("cost", [TRUE, TRUE.model_copy(update={"partial": 0.0})])
def test_constants_are_found_again(cost):
    found = fit(measurements(cost))
    for name, constant in cost.model_dump().items():
        assert getattr(found, name) == pytest.approx(constant, rel=1e-3, abs=1e-15), name


def test_noise_of_measurements_is_no_worse_in_what_was_not_measured():
    found = fit(measurements(noise=0.02))
    assert relative_error(found, measurements(seed=1)) < 0.01


def test_a_constant_is_never_negative():
    # Longer batches that take less time.
    samples = [Measured(work, 1e-4 / (1 + work.keys / 1e6)) for work in works()]
    assert min(fit(samples).model_dump().values()) >= 0


def test_too_few_measurements_are_refused():
    with pytest.raises(ValueError, match="4 measurements cannot fix 5 constants"):
        fit(measurements()[:4])
