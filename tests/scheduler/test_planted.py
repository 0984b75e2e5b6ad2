"""Bugs planted in the scheduler, each of a kind that is easily made, are noticed by the stress program."""

import subprocess

import pytest

from .engines import compile_program, plant
from .plans import TIGHT, TWO_LANES

# What is wrong, in which file, and the change that makes it so.
PLANTED = [
    (
        "a missed decrement: who leaves is still counted as a holder",
        "common/pages.hpp",
        "add(state.holders[page], -1) == 1",
        "state.holders[page] == 1",
    ),
    (
        "a missed increment: who finds a page is not counted",
        "common/prefix.hpp",
        "      ++s.pages.state[g].holders[page];\n",
        "",
    ),
    (
        "a swapped order: rings are read before the last step is retired",
        "common/scheduler.hpp",
        "  retire(team, s, b, m);\n  poll(team, s, b, m, sights);\n",
        "  poll(team, s, b, m, sights);\n  retire(team, s, b, m);\n",
    ),
    (
        "an off-by-one at a page boundary: a window gives its first page back a token early",
        "common/pages.hpp",
        "most(0, computed + 1 - cfg::kWindow[group])",
        "most(0, computed + 2 - cfg::kWindow[group])",
    ),
    (
        "an off-by-one: a prompt that is found whole leaves nothing to compute",
        "common/prefix.hpp",
        "least(s.requests.length[q] - 1, s.requests.scored[q])",
        "least(s.requests.length[q], s.requests.scored[q])",
    ),
    (
        "a stale link: an evicted page can still be found",
        "common/pages.hpp",
        "  *link = prefixes.next[entry];\n",
        "",
    ),
    (
        "an off-by-one at a page boundary: a page is taken a token late",
        "common/batch.hpp",
        "pages_for(s.requests.computed[s.rows.request[slot]] + chunk)",
        "pages_for(s.requests.computed[s.rows.request[slot]] + chunk - 1)",
    ),
    (
        "a leak: a page that gives way to an equal one is not freed",
        "common/prefix.hpp",
        "    free_page(s, g, own);\n",
        "",
    ),
    (
        "a count that outlives its epoch",
        "common/poll.hpp",
        "ring.submit_read = ring.abort_read = ring.token_written = 0;",
        "ring.submit_read = ring.abort_read = 0;",
    ),
    (
        "a span that runs into its neighbour where the arena wraps",
        "host/ring.cpp",
        "skipped + words > dp::cfg::kArenaWords - f.used",
        "words > dp::cfg::kArenaWords - f.used",
    ),
    (
        "a record of the last lap taken for a new one",
        "common/ring.hpp",
        "observe(records[(read + n) % kSlots].flag) == record_flag(epoch, read + n)",
        "observe(records[(read + n) % kSlots].flag) >> 32 == epoch",
    ),
    (
        "a reader that is overrun: rows run without room for their records",
        "common/admit.hpp",
        "if (ring.rows[lane] <= ring.room) continue;",
        "if (ring.rows[lane] <= cfg::kTokenSlots) continue;",
    ),
    (
        "a ring that stalls keeps what others wait for: paused rows do not give way",
        "common/admit.hpp",
        "would_fit = paused > 0 && ",
        "would_fit = false && ",
    ),
    (
        "a ring that stalls keeps what others wait for: it takes all history",
        "common/share.hpp",
        "free.count - prompts - lives >= owed;",
        "free.count - prompts - lives >= 0;",
    ),
    (
        "counts that are compared and not subtracted: a ring whose writer has passed 2^32 seems to have all its room",
        "common/poll.hpp",
        "least(ring.token_written - ring.token_read, cfg::kTokenSlots)",
        "least(ring.token_written - least(ring.token_read, ring.token_written), cfg::kTokenSlots)",
    ),
    (
        "a reader that is overrun: a prompt's logprobs take the room of its ring's other rows",
        "common/score.hpp",
        "static_cast<int32_t>(s.rings[r].room) - static_cast<int32_t>(s.rings[r].rows[lane])",
        "static_cast<int32_t>(s.rings[r].room)",
    ),
    (
        "said twice: a preempted row forgets which logprobs of its prompt are out",
        "common/leave.hpp",
        "        s.requests.computed[q] = 0;\n",
        "        s.requests.computed[q] = 0;\n"
        "        if (s.requests.scored[q] < cfg::kMaxContext) s.requests.scored[q] = 0;\n",
    ),
    (
        "never said: a prefix is found whose logprobs are wanted",
        "common/prefix.hpp",
        "least(s.requests.length[q] - 1, s.requests.scored[q])",
        "s.requests.length[q] - 1",
    ),
    (
        "a missed wake: an engine that has parked hears of no request",
        "host/ring.cpp",
        "  ++f.submitted;\n  dp::wake(f.memory);\n",
        "  ++f.submitted;\n",
    ),
    (
        "an off-by-one: the last position of a prompt is asked about a token that does not exist",
        "common/score.hpp",
        "least(to, requests.prompt[q] - 1)",
        "least(to, requests.prompt[q])",
    ),
]


# Those that take two lanes.
PLANTED_BETWEEN_LANES = [
    (
        "a step that outlives its epoch: its records reach the ring's next frontend",
        "common/retire.hpp",
        "s.requests.epoch[q] == s.rings[r].epoch ? r : kNone",
        "s.requests.epoch[q] != 0 ? r : r",
    ),
    (
        "room given twice: what a step under way will write is forgotten",
        "common/poll.hpp",
        "  for (int l = 0; l < kLaneCount; ++l) ring.room -= least(ring.room, ring.promised[l] + ring.scores[l]);\n",
        "",
    ),
    (
        "a row that ends while its step is under way",
        "common/poll.hpp",
        " && !elsewhere(q);",
        ";",
    ),
]


@pytest.mark.parametrize(
    ("plan", "file", "right", "wrong"),
    [(TIGHT, *bug[1:]) for bug in PLANTED] + [(TWO_LANES, *bug[1:]) for bug in PLANTED_BETWEEN_LANES],
    ids=[bug[0] for bug in PLANTED + PLANTED_BETWEEN_LANES],
)
def test_a_planted_bug_is_noticed(tmp_path, plan, file, right, wrong):
    plant(plan, tmp_path, file, right, wrong)
    # A planted bug may leave a parameter unused.
    program = compile_program(tmp_path, "stress.cpp", "-w")
    result = subprocess.run([program, "100000", "1", "1"], capture_output=True, text=True, timeout=120)
    # By a fault, which aborts, or by a crash.
    assert result.returncode < 0, result.stdout
