"""Rows with KV in host memory in the scheduler: many steps of them beside fast rows, whatever builds it.

`world.hpp` is the world of all plans; `slow_toy.hpp` has the slow rows' KV, copiers that dawdle, and checks each block
that is attended to. `invariants.hpp` says what holds of pages in flight.
"""

import subprocess

import pytest

from tests.recall.plans import EXACT, SERVED

from .engines import compile_program, plant
from .test_stress import ADDRESS, SHORT, THREAD, run


# Rows that choose, in scarce host memory; and rows that attend to all, beside windows.
@pytest.mark.parametrize(
    ("plan", "steps", "least"),
    [
        (
            SERVED,
            50_000,
            {"slow_steps": 30_000, "recalled": 500_000, "chosen": 80_000, "sparse": 8_000, "drained": 1_000,
             "preempted": 100, "epochs": 200, "stalls": 2, "link_waits": 10_000},
        ),
        (EXACT, 50_000, {"slow_steps": 30_000, "recalled": 800_000, "passes": 200_000, "drained": 1_000,
                         "link_waits": 10_000}),
    ],
    ids=lambda value: getattr(value, "name", None),
)  # fmt: skip
def test_many_steps(programs, plan, steps, least):
    happened = run(programs(plan, "stress.cpp"), steps, 1, 1)
    assert {name: happened[name] for name, count in least.items() if happened[name] < count} == {}


@pytest.mark.parametrize(
    ("plan", "flags", "members"),
    [(SERVED, (), 3), (SERVED, ADDRESS, 1), (SERVED, THREAD, 2), (EXACT, ADDRESS, 1)],
    ids=["three threads", "address and undefined", "thread", "exact, address and undefined"],
)
def test_every_build_and_number_of_threads_makes_the_same_steps(programs, plan, flags, members):
    assert run(programs(plan, "stress.cpp", *flags), SHORT, 7, members) == run(
        programs(plan, "stress.cpp"), SHORT, 7, 1
    )


# What is wrong, in which file, and the change that makes it so.
PLANTED = [
    (
        "a page's slot is taken by the row's next before it has left",
        "common/recall.hpp",
        "page < row.sent && includes(ended, row.sent_with[page % kRecentBlocks])",
        "page < row.sent && includes(ended, ended)",
    ),
    (
        "a row that leaves gives its memory back at once",
        "common/residency.hpp",
        "!is_quiet(row, r.recalls_ended, r.departures_ended)",
        "r.departures_ended == 1",
    ),
    (
        "a row's memory is given back while its recalls arrive",
        "common/recall.hpp",
        "return left && includes(recalls_ended, row.recalled_with);",
        "return left && recalls_ended + row.recalled_with != 1;",
    ),
    (
        "a page leaves before it is full",
        "common/residency.hpp",
        "s.requests.computed[s.rows.request[slot]] / cfg::kPageSize;",
        "(s.requests.computed[s.rows.request[slot]] + 1) / cfg::kPageSize;",
    ),
    (
        "host pages are not promised: rows take more than there are",
        "common/residency.hpp",
        "    s.recall->promised += host_need(s.requests.longest[q]);\n",
        "",
    ),
    (
        "a leak: promises outlive their row",
        "common/residency.hpp",
        "  r.promised -= host_need(s.requests.longest[s.rows.request[slot]]) - r.row[slot].sent;\n",
        "",
    ),
    (
        "a leak: host pages are not given back",
        "common/residency.hpp",
        "      r.host.count += row.sent;\n",
        "",
    ),
    (
        "a table that is one step behind: the last pages are looked for where they were",
        "common/residency.hpp",
        "exact_entry(row, first + k, pages)",
        "exact_entry(row, first + k, most(before, 1))",
    ),
    (
        "a slot of the table outlives its row",
        "common/residency.hpp",
        "b.table[kFull][slots[k]][page] = kNone; });\n",
        "(void)page; });\n",
    ),
    (
        "a block that lost its slot is taken for one that is there",
        "common/recall.hpp",
        "    if (before != kNone) cache.slot[before] = kNone;\n",
        "",
    ),
    (
        "a slow row's pages are counted as the card's demand: it waits for more than it takes",
        "common/pages.hpp",
        "  if (has_slots(group, slot)) return 0;\n",
        "",
    ),
    (
        "a ring that stalls keeps host pages that others wait for",
        "common/admit.hpp",
        "lacks_host <= paused_host(s)",
        "lacks_host <= 0",
    ),
]


@pytest.mark.parametrize(("file", "right", "wrong"), [bug[1:] for bug in PLANTED], ids=[bug[0] for bug in PLANTED])
def test_a_planted_bug_is_noticed(tmp_path, file, right, wrong):
    plant(SERVED, tmp_path, file, right, wrong)
    program = compile_program(tmp_path, "stress.cpp", "-w")
    result = subprocess.run([program, "30000", "1", "1"], capture_output=True, text=True, timeout=300)
    # By a fault, which aborts, or by a crash.
    assert result.returncode < 0, result.stdout
