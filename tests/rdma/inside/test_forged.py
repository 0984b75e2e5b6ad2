"""What is not as a ring library writes it: it is refused where it is read, and no other request changes."""

import ctypes

import pytest

from dualpace.engine.ring import Finish
from dualpace.plan.structs import RecordType
from tests.scheduler.plans import TIGHT

from .steps import at_rest, ends, memory_of, other_goes_on, running, step_until, wait_for


@pytest.fixture
def toy(remote):
    return remote(TIGHT)


def test_a_record_of_an_epoch_that_is_over_is_not_read(toy):
    request = running(toy)
    transport = toy.rings[0].transport
    record = transport._view.submits[1]
    ctypes.memmove(ctypes.addressof(record), ctypes.addressof(transport._view.submits[0]), ctypes.sizeof(record))
    record.flag = (transport._control.epoch - 2) << 32 | 2
    transport._connection.endpoint.post(transport._record(record))
    step_until(toy, lambda: request.finish)
    assert request.finish is Finish.LENGTH
    assert toy.rings[1].status().accepted == 1


@pytest.mark.parametrize(("field", "value"), [("arena_words", 1), ("arena_begin", 1 << 31), ("type", RecordType.ABORT)])
def test_a_forged_record_ends_with_an_error_and_no_other_request_does(toy, field, value):
    request = running(toy)
    transport = toy.rings[0].transport
    record = transport._view.submits[1]
    ctypes.memmove(ctypes.addressof(record), ctypes.addressof(transport._view.submits[0]), ctypes.sizeof(record))
    setattr(record, field, value)
    record.tag, record.flag = 99, transport._control.epoch << 32 | 2
    transport._connection.endpoint.post(transport._record(record))
    forged = []

    def forged_ends():
        toy.step()
        for event in toy.rings[0].wait(0):
            forged.append(event) if event.tag == 99 else toy.requests[event.tag].take(event)
        return forged

    wait_for(forged_ends)
    assert [event.finish for event in forged] == [Finish.ERROR]
    step_until(toy, lambda: request.finish)
    assert request.finish is Finish.LENGTH
    assert memory_of(toy).status.counters.malformed == 1
    at_rest(toy)


@pytest.mark.parametrize(("count", "fault"), [(1, "torn"), (1 << 20, "forged")])
def test_a_count_without_records(toy, count, fault):
    running(toy)
    control = memory_of(toy).rings[0].control
    control.token_written = control.token_written + count
    assert ends(toy.rings[0]) == [Finish.ENGINE_GONE]
    assert toy.rings[0].uplink.traffic.faults[fault] == 1
    other_goes_on(toy)
