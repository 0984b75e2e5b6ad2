"""Slow rows over many steps of choosing, recalling, leaving and being aborted, whatever builds it and whoever copies.

`world.cpp` says what happens and what is checked: that a token attends to just the blocks that a sort would choose,
that each of them is there, and that no page is given back while a list names it, twice, or never.
"""

import json
import subprocess

import pytest

from dualpace.build.units import HOST
from tests.scheduler.engines import plant, write_sources

from .plans import HERE, PLANS, TIGHT

ADDRESS = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-g")
THREAD = ("-fsanitize=thread", "-g")
SHORT = 100


def compile_world(folder, *flags):
    """The program of the sources in `folder`; `flags` come last, so they win."""
    program = folder / "world"
    command = ["g++", *HOST, "-O1", "-pthread", str(HERE / "world.cpp"), "-o", str(program), *flags]
    subprocess.run(command, cwd=folder, check=True)
    return program


def run(program, steps, seed=1, members=1, threads=False):
    """What the program printed. A fault is in the test's output."""
    command = [program, *map(str, (steps, seed, members, int(threads)))]
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, timeout=300).stdout)


@pytest.fixture(scope="module")
def programs(tmp_path_factory):
    """Compiles the program of a plan with some flags, once."""
    compiled = {}

    def of(plan, *flags):
        if (plan.name, flags) not in compiled:
            folder = tmp_path_factory.mktemp(plan.name)
            write_sources(plan, folder)
            compiled[plan.name, flags] = compile_world(folder, *flags)
        return compiled[plan.name, flags]

    return of


# What has to have happened at least so often in so many steps.
@pytest.mark.parametrize(
    ("name", "steps", "least"),
    [
        ("tight", 20_000, {"lives": 1_000, "aborted_in_flight": 300,
         "recalled": 30_000, "sent": 5_000, "paused": 5_000}),
        ("spare", 20_000, {"lives": 800, "aborted_in_flight": 100,
         "recalled": 10_000, "sent": 5_000, "paused": 20}),
    ],
)  # fmt: skip
def test_many_steps(programs, name, steps, least):
    happened = run(programs(PLANS[name]), steps)
    assert {what: happened[what] for what, count in least.items() if happened[what] < count} == {}
    assert happened["recalled"] < happened["chosen"]


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
@pytest.mark.parametrize(("flags", "members"), [((), 3), (ADDRESS, 1), (THREAD, 2)], ids=["three", "address", "thread"])
def test_every_build_and_number_of_threads_does_the_same(programs, plan, flags, members):
    assert run(programs(plan, *flags), SHORT, 7, members) == run(programs(plan), SHORT, 7)


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
@pytest.mark.parametrize("seed", range(3))
def test_copying_threads_race_with_nobody(programs, plan, seed):
    assert run(programs(plan, *THREAD), 300, seed, threads=True)["recalled"] > 0


# What is wrong, in which file, and the change that makes it so.
PLANTED = [
    (
        "a block that is chosen again is not noted, and may lose its slot",
        "common/recall.hpp",
        "    if (slot != kNone) cache.used[slot] = step;\n",
        "",
    ),
    (
        "a block that lost its slot still has it",
        "common/recall.hpp",
        "    if (before != kNone) cache.slot[before] = kNone;\n",
        "",
    ),
    ("equal scores that are not chosen take a place", "common/recall.hpp", "&& i <= last)", ")"),
    ("of equal scores the first is not chosen", "common/recall.hpp", "before + 1 == k - above", "before == k - above"),
    (
        "a row finds what the one before it had",
        "common/recall.hpp",
        "[&](int i) { row.layer[i / cfg::kPagesPerRow].slot[i % cfg::kPagesPerRow] = kNone; }",
        "[&](int) {}",
    ),
    (
        "a page that has not left is overwritten",
        "common/recall.hpp",
        "return most(cfg::kSinkBlocks, pages_left(row, ended)) + cfg::kRecentBlocks;",
        "return most(cfg::kSinkBlocks, pages_left(row, ended)) + cfg::kRecentBlocks + 1;",
    ),
    (
        "a page that is leaving is taken for one that has left",
        "common/recall.hpp",
        "page < row.sent && includes(ended, row.sent_with[page % kRecentBlocks])",
        "page < row.sent && includes(ended, ended)",
    ),
    (
        "a row's memory is given away while its recalls arrive",
        "common/recall.hpp",
        "return left && includes(recalls_ended, row.recalled_with);",
        "return left && recalls_ended + row.recalled_with != 1;",
    ),
    (
        "a row's memory is given away while its pages leave",
        "common/recall.hpp",
        "return left && includes",
        "return includes",
    ),
    (
        "tickets that are compared and not subtracted",
        "common/transfer.hpp",
        "static_cast<int32_t>(tickets - ticket) >= 0",
        "tickets >= ticket",
    ),
]


@pytest.mark.parametrize(("file", "right", "wrong"), [bug[1:] for bug in PLANTED], ids=[bug[0] for bug in PLANTED])
def test_a_planted_bug_is_noticed(tmp_path, file, right, wrong):
    plant(TIGHT, tmp_path, file, right, wrong)
    program = compile_world(tmp_path, "-w")
    result = subprocess.run([program, "20000", "1", "1", "0"], capture_output=True, text=True, timeout=120)
    assert result.returncode < 0, result.stdout
