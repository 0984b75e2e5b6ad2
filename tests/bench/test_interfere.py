"""What works beside a run: busy where it is told, and gone in time."""

import os
import time
from pathlib import Path

import pytest

from dualpace.bench.interfere import InterferenceError, interfering, work

HERE = sorted(os.sched_getaffinity(0))


def children() -> list[int]:
    tasks = Path("/proc/self/task").iterdir()
    found = [int(child) for task in tasks for child in (task / "children").read_text().split()]
    return [child for child in found if b"dualpace.bench.interfere" in Path(f"/proc/{child}/cmdline").read_bytes()]


def until(holds, seconds: float = 20.0) -> bool:
    end = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > end:
            return False
        time.sleep(0.05)
    return True


@pytest.mark.parametrize("kind", ["copy", "compress", "compile"])
def test_each_kind_works_until_its_time_is_up(kind):
    begun = time.monotonic()
    assert work(kind, 0.2) >= 1
    assert time.monotonic() - begun < 30


def test_workers_run_on_the_cpus_they_are_told_and_end_with_the_block():
    with interfering(2, "copy", HERE[:1], 60):
        assert until(lambda: len(children()) == 2)
        assert all(os.sched_getaffinity(child) == set(HERE[:1]) for child in children())
    assert children() == []


def test_workers_end_by_themselves():
    def over() -> bool:
        return all(Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()[0] == "Z" for child in children())

    with interfering(1, "copy", (), 0.5):
        assert until(over)


def test_a_cpu_that_is_not_there_is_named():
    with pytest.raises(InterferenceError, match="CPU 4095"), interfering(1, "copy", (4095,), 1):
        pass
