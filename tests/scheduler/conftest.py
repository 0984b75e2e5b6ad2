"""Engines and rings of the small plans, compiled once a session."""

import pytest

from .engines import compile_host, compile_program, write_sources
from .plans import PLANS
from .toy import Toy


@pytest.fixture(scope="session")
def libraries(tmp_path_factory):
    """Plan -> its libraries, compiled when first asked for."""
    compiled = {}

    def of(plan):
        if plan not in compiled:
            compiled[plan] = compile_host(plan, tmp_path_factory.mktemp(plan.name))
        return compiled[plan]

    return of


@pytest.fixture(scope="module")
def programs(tmp_path_factory):
    """Compiles a program of a plan with some flags, once."""
    compiled = {}

    def of(plan, source, *flags):
        key = (plan.name, source, flags)
        if key not in compiled:
            folder = tmp_path_factory.mktemp(plan.name)
            write_sources(plan, folder)
            compiled[key] = compile_program(folder, source, *flags)
        return compiled[key]

    return of


@pytest.fixture(params=PLANS.values(), ids=PLANS)
def plan(request):
    return request.param


@pytest.fixture
def toys(libraries, tmp_path):
    """Makes engines over the toy model, and ends them."""
    made = []

    def make(plan, **options):
        made.append(Toy(plan, libraries(plan), tmp_path / f"rings{len(made)}", **options))
        return made[-1]

    yield make
    for toy in made:
        toy.close()
