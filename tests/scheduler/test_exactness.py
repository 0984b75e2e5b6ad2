"""Whatever the scheduler does with a request, its text is the one it would have had alone."""

import pytest

from .plans import NARROW, TIGHT
from .toy import random_run


@pytest.mark.parametrize("seed", range(4))
def test_text_does_not_depend_on_what_else_runs(toys, plan, seed):
    toy = toys(plan)
    random_run(toy, seed, steps=400)
    toy.check()
    assert len(toy.requests) > 50


def test_a_tight_pool_makes_rows_give_way(toys):
    toy = toys(TIGHT)
    random_run(toy, seed=5, steps=900)
    toy.check()
    status = toy.rings[0].status()
    assert min(status.preempted, status.reused, status.evicted) > 5


@pytest.mark.parametrize("plan", [TIGHT, NARROW], ids=lambda plan: plan.name)
def test_the_number_of_threads_does_not_change_a_step(toys, plan):
    alone, four = toys(plan), toys(plan, members=4)
    for toy in (alone, four):
        random_run(toy, seed=11, steps=150)
        toy.check()
    assert alone.trace == four.trace
