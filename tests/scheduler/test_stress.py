"""The scheduler over many steps of all that can happen, whatever builds it and however many threads run it.

`world.hpp` says what happens and what is checked: after each step the invariants, at each event the text that the
request would have had alone, at the end that nothing is held.
"""

import json
import subprocess

import pytest

from .plans import FORGETFUL, NARROW, ROOMY, TIGHT, TWO_LANES

ADDRESS = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-g")
THREAD = ("-fsanitize=thread", "-g")
SHORT = 2000


def run(program, *arguments):
    """What the program printed. A fault is in the test's output."""
    result = subprocess.run([program, *map(str, arguments)], check=True, stdout=subprocess.PIPE, timeout=600)
    return json.loads(result.stdout)


# Steps with at least one running row each, a million together, and what has to have happened at least so often.
@pytest.mark.parametrize(
    ("plan", "steps", "least"),
    [
        (
            TIGHT,
            500_000,
            {
                "ended": 40_000, "scored": 150_000, "preempted": 2_000, "exhausted": 200_000,
                "epochs": 5_000, "wraps": 50_000, "reused": 20_000, "evicted": 200_000, "aborted": 20_000,
                "malformed": 800, "closed": 2_000, "killed": 1_000, "laps": 3_000, "stalls": 30, "parks": 150,
            },
        ),
        (NARROW, 300_000, {"ended": 15_000, "preempted": 100, "exhausted": 100_000, "wraps": 5_000, "reused": 8_000}),
        (ROOMY, 200_000, {"ended": 35_000, "epochs": 3_000, "wraps": 10_000, "reused": 150_000, "evicted": 200_000}),
        (TWO_LANES, 200_000, {"ended": 5_000, "slow_steps": 50_000, "preempted": 500, "epochs": 1_000}),
        (FORGETFUL, 100_000, {"ended": 5_000, "preempted": 500, "laps": 300, "stalls": 5}),
    ],
    ids=lambda value: getattr(value, "name", None),
)  # fmt: skip
def test_a_million_steps(programs, plan, steps, least):
    happened = run(programs(plan, "stress.cpp"), steps, 1, 1)
    assert happened["steps"] >= steps
    assert {name: happened[name] for name, count in least.items() if happened[name] < count} == {}


@pytest.mark.parametrize(
    ("plan", "flags", "members"),
    [
        (TIGHT, ("-O3",), 1),
        (TIGHT, ("-O1",), 3),
        (TIGHT, ADDRESS, 1),
        (TIGHT, THREAD, 2),
        (TWO_LANES, ADDRESS, 1),
        (TWO_LANES, THREAD, 2),
    ],
    ids=[
        "optimised",
        "three threads",
        "address and undefined",
        "thread",
        "lanes, address and undefined",
        "lanes, thread",
    ],
)
def test_every_build_and_number_of_threads_makes_the_same_steps(programs, plan, flags, members):
    expected = run(programs(plan, "stress.cpp"), SHORT, 7, 1)
    assert run(programs(plan, "stress.cpp", *flags), SHORT, 7, members) == expected


def test_both_ends_of_a_ring_run_at_once_without_a_race(programs):
    assert run(programs(TIGHT, "ends.cpp", *THREAD), 300) == {"ended": 2 * 300}
