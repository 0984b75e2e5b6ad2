"""The slow lane takes rows while what they recall fits the time that it computes."""

import subprocess

import pytest

from tests.scheduler.engines import write_sources

from .plans import SERVED
from .test_world import HERE, HOST


@pytest.fixture(scope="module")
def pace(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pace")
    write_sources(SERVED, folder)
    program = folder / "pace"
    command = ["g++", *HOST, "-O1", "-Werror", "-pthread", str(HERE / "pace.cpp"), "-o", str(program)]
    subprocess.run(command, cwd=folder, check=True)

    def takes(rows=1, step=100_000, stall=0, misses=10, copy=1000, sparse=1, tokens=160, steps=20) -> bool:
        arguments = map(str, (rows, step, stall, misses, copy, sparse, tokens, steps))
        return subprocess.run([program, *arguments], check=True, capture_output=True, text=True).stdout == "1\n"

    return takes


def test_an_empty_lane_takes_any_row(pace):
    assert pace(rows=0, steps=0)


def test_a_lane_that_has_not_been_measured_takes_one_row(pace):
    assert not pace(steps=0)


def test_rows_are_taken_as_long_as_their_recalls_fit_the_step(pace):
    # 10 blocks a row and microsecond each: two rows and the new one take 30 us.
    assert pace(rows=2, step=31_000)
    assert not pace(rows=2, step=29_000)


def test_a_slower_link_takes_fewer_rows(pace):
    assert pace(rows=2, step=40_000, copy=1300)
    assert not pace(rows=2, step=40_000, copy=1400)


def test_what_the_lane_waits_is_neither_computing_nor_free(pace):
    assert pace(rows=2, step=40_000, stall=4_000)
    assert not pace(rows=2, step=40_000, stall=6_000)


def test_a_row_that_attends_to_all_is_foreseen_by_its_length(pace):
    # Of 20 pages 16 are neither first nor last, and none of the 5 slots keeps its block: 16 in each of 3 layers.
    assert pace(sparse=0, step=59_000)
    assert not pace(sparse=0, step=57_000)
    assert pace(sparse=0, step=20_000, tokens=64)
