"""CPU workers that dawdle, stop and die, while rows ask, are aborted and lose their blocks to others.

`world.cpp` says what happens and what is checked: that every layer comes to an end, that it attended to just the row's
blocks with the row's query, each once, and that nothing of a life that is over counts.
"""

import json
import subprocess

import pytest

from dualpace.build.units import HOST
from tests.scheduler.engines import plant, write_sources

from .plans import HERE, SMALL

ADDRESS = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-g")
THREAD = ("-fsanitize=thread", "-g")


def compile_world(folder, *flags):
    """The program of the sources in `folder`; `flags` come last, so they win."""
    program = folder / "world"
    command = ["g++", *HOST, "-O1", "-Werror", "-pthread", str(HERE / "world.cpp"), "-o", str(program), *flags]
    subprocess.run(command, cwd=folder, check=True)
    return program


def run(program, layers, seed=1, workers=3, processes=False, members=1):
    """What the program printed. A fault is in the test's output."""
    command = [program, *map(str, (layers, seed, workers, int(processes), members))]
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, timeout=300).stdout)


@pytest.fixture(scope="module")
def programs(tmp_path_factory):
    """Compiles the program with some flags, once."""
    compiled = {}

    def of(*flags):
        if flags not in compiled:
            folder = tmp_path_factory.mktemp("world")
            write_sources(SMALL, folder)
            compiled[flags] = compile_world(folder, *flags)
        return compiled[flags]

    return of


# What has to have happened at least so often, for the checks to have met it.
OFTEN = {"aborted": 20, "recalled": 300, "died": 3, "full": 3, "answered": 300, "late": 20, "withdrawn": 300}


@pytest.mark.parametrize("processes", [False, True], ids=["threads", "processes"])
@pytest.mark.parametrize("seed", range(3))
def test_layers_end_and_are_right_whatever_becomes_of_workers(programs, seed, processes):
    happened = run(programs(), 2_000, seed, processes=processes)
    assert {what: happened[what] for what, least in OFTEN.items() if happened[what] < least} == {}
    assert happened["given"] == happened["answered"] + happened["withdrawn"]


def test_processes_are_stopped_too(programs):
    assert run(programs(), 2_000, 4, processes=True)["stopped"] > 3


@pytest.mark.parametrize("flags", [ADDRESS, THREAD], ids=["address", "thread"])
@pytest.mark.parametrize(("workers", "members"), [(1, 1), (3, 1), (2, 3)])
def test_sanitizers_have_nothing_to_say(programs, flags, workers, members):
    assert run(programs(*flags), 300, 7, workers, members=members)["answered"] > 0


def test_without_workers_everything_is_recalled(programs):
    happened = run(programs(), 50, workers=0)
    assert happened["answered"] == 0
    assert happened["withdrawn"] == happened["given"] > 0


# What is wrong, in which file, the change that makes it so, and what notices it beside the program itself.
PLANTED = [
    (
        "an answer of another generation counts",
        "common/cooperate.hpp",
        "awaited.flag == answer.flag;",
        "awaited.flag != 0;",
    ),
    (
        "a withdrawn item is still awaited",
        "common/cooperate.hpp",
        "  ledger.awaited[place].flag = 0;\n",
        "",
    ),
    (
        "an item is written over one that is awaited",
        "common/cooperate.hpp",
        "ledger.awaited[place(i)].flag == 0 ? wanted : i",
        "ledger.awaited[place(i)].flag == 0 ? wanted : wanted",
    ),
    (
        "an answer is written over one that nobody has collected",
        "host/worker.hpp",
        "observe(desk_.collected) < kAnswers",
        "observe(desk_.collected) < 100 * kAnswers",
        *THREAD,
    ),
    (
        "blocks that found no place are nobody's",
        "common/cooperate.hpp",
        "  return given;\n",
        "  return blocks;\n",
    ),
    (
        "an item has blocks of the next one",
        "common/cooperate.hpp",
        "least(cfg::kItemBlocks, given - begin);",
        "least(cfg::kItemBlocks, given - begin + 1);",
    ),
    (
        "what is withdrawn has its neighbour's place",
        "common/cooperate.hpp",
        "w.withdrawn[w.before[i]] = i;",
        "w.withdrawn[w.before[i]] = i / 2 * 2;",
    ),
    (
        "splits are joined as if they were equally loud",
        "host/worker.hpp",
        "added = std::exp(more.lse[h] - peak)",
        "added = kept",
    ),
]


@pytest.mark.parametrize(
    ("file", "right", "wrong", "flags"), [(*bug[1:4], bug[4:]) for bug in PLANTED], ids=[bug[0] for bug in PLANTED]
)
def test_a_planted_bug_is_noticed(tmp_path, file, right, wrong, flags):
    plant(SMALL, tmp_path, file, right, wrong)
    program = compile_world(tmp_path, "-w", *flags)
    result = subprocess.run([program, "20000", "1", "3", "0", "1"], capture_output=True, text=True, timeout=120)
    assert result.returncode != 0, result.stdout


def test_a_team_that_does_not_meet_before_an_item_is_there_is_noticed(tmp_path):
    right = "  team.sync();\n  if (team.leader()) {\n    ledger.published"
    plant(SMALL, tmp_path, "common/cooperate.hpp", right, right.removeprefix("  team.sync();\n"))
    program = compile_world(tmp_path, "-w", *THREAD)
    result = subprocess.run([program, "20000", "1", "2", "0", "3"], capture_output=True, text=True, timeout=120)
    assert result.returncode != 0, result.stdout
