"""What a ring holds whose frontend has stalled never keeps another ring waiting without bound."""

import pytest

from dualpace.engine.ring import Finish, FrontendRing, SamplingParams

from .plans import FORGETFUL, small_plan

CONTEXT, SLOTS = 96, 16
STALLED, OTHER = 0, 1


def make(name, **limits):
    return small_plan(name, rings=2, token_slots=SLOTS, **limits)


SCARCE = make("scarce pages", pages=(16,))
CROWDED = make("crowded", max_batch=2, queue=8)
SLOTLESS = make("slotless", max_batch=2, queue=2, request_slots=8)


def stall(toy, prompts, max_tokens):
    """Requests of a frontend that never reads, and as many steps as it takes until nothing runs any more."""
    requests = [toy.submit(prompt, SamplingParams(max_tokens=max_tokens), STALLED) for prompt in prompts]
    while toy.step().rows:
        pass
    return requests


def serve(toy, prompt, max_tokens, limit=500):
    """A request of the other ring; the stalled one is still not read."""
    request = toy.submit(prompt, SamplingParams(max_tokens=max_tokens), OTHER)
    for _ in range(limit):
        toy.step()
        toy.read(OTHER)
        if request.finish:
            return request
    pytest.fail("the other ring's request is never served")


def resume(toy):
    """The stalled frontend reads again, and all of its requests end as they should."""
    toy.drain()
    toy.check()


def test_pages_of_paused_rows_go_to_who_waits_for_them(toys):
    toy = toys(SCARCE)
    rows = stall(toy, [[i] * 28 for i in range(2)], max_tokens=60)
    held = toy.rings[OTHER].status()
    assert (held.running, held.total_pages - held.free_pages) == (2, 10)
    assert serve(toy, [9] * 60, max_tokens=3).finish is Finish.LENGTH
    assert toy.rings[OTHER].status().preempted == 1
    resume(toy)
    assert [len(row.tokens) for row in rows] == [60, 60]


def test_row_slots_of_paused_rows_go_to_who_waits_for_them(toys):
    toy = toys(CROWDED)
    stall(toy, [[i] * 5 for i in range(2)], max_tokens=60)
    assert toy.rings[OTHER].status().running == CROWDED.schedule.max_batch
    serve(toy, [9] * 5, max_tokens=30)
    resume(toy)


def test_a_requeued_row_waits_for_its_frontend_however_much_others_ask_for(toys):
    toy = toys(CROWDED)
    stall(toy, [[i] * 5 for i in range(2)], max_tokens=60)
    for i in range(20):
        serve(toy, [9, i], max_tokens=3)
    assert toy.rings[OTHER].status().preempted == 1
    resume(toy)


def test_paused_rows_keep_their_pages_where_those_would_not_be_enough(toys):
    toy = toys(SCARCE)
    running = toy.submit([7] * 40, SamplingParams(max_tokens=40), OTHER)
    toy.submit([8] * 8, SamplingParams(max_tokens=60), STALLED)
    while len(running.tokens) <= SLOTS:
        toy.step()
        toy.read(OTHER)
    large = toy.submit([9] * 90, SamplingParams(max_tokens=1), OTHER)
    while not running.finish:
        assert toy.rings[OTHER].status().preempted == 0
        toy.step()
        toy.read(OTHER)
    while not large.finish:
        toy.step()
        toy.read(OTHER)
    resume(toy)


@pytest.mark.parametrize("life", [1, 40])
def test_a_ring_has_history_for_its_longest_request_whatever_others_hold(toys, life):
    toy = toys(FORGETFUL)
    requests = stall(toy, [[i] * (CONTEXT - life) for i in range(7)], max_tokens=life)
    assert None not in requests
    for _ in range(3):
        serve(toy, [9] * 50, max_tokens=CONTEXT - 50)
    resume(toy)


def test_a_ring_that_waits_for_history_holds_up_no_other(toys):
    toy = toys(FORGETFUL)
    # One life takes what the ring is owed and another what is left over; the third waits for an end.
    many = [toy.submit([i] * 20, SamplingParams(max_tokens=CONTEXT - 20), STALLED) for i in range(3)]
    for _ in range(5):
        toy.step()
    assert toy.rings[OTHER].status().waiting == 1
    assert serve(toy, [9] * 5, max_tokens=3, limit=5).finish is Finish.LENGTH
    toy.drain()
    toy.check()
    assert {request.finish for request in many} == {Finish.LENGTH}


def test_ends_that_nobody_reads_leave_others_a_request_slot(toys):
    toy = toys(SLOTLESS)
    for i in range(40):
        request = toy.submit([i], SamplingParams(max_tokens=50), STALLED)
        if request is None:
            break
        toy.step()
        toy.abort(request)
        toy.step()
    else:
        pytest.fail("the engine takes requests of a ring that has no room for their ends")
    serve(toy, [9] * 5, max_tokens=3)
    resume(toy)


def test_rings_that_are_closed_leave_the_queue_to_those_that_are_open(toys, libraries):
    plan = make("closed", max_batch=1, queue=8)
    toy = toys(plan)
    toy.rings[OTHER].close()
    for i in range(9):
        toy.submit([i] * 3, SamplingParams(max_tokens=90), STALLED)
    toy.step()
    toy.step()
    status = toy.rings[STALLED].status()
    # All request slots but the one that the other ring is owed.
    assert status.running + status.waiting == plan.schedule.max_requests - 1
    toy.rings[OTHER] = FrontendRing(libraries(plan).ring, toy.memory.path, OTHER)
    toy.drain()
    toy.check()
