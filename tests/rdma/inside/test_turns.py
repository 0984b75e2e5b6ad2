"""What a frontend of another host leaves in its ring is nothing to the next one, whatever it is."""

import ctypes
from itertools import pairwise

import pytest

from dualpace.engine.ring import Finish, SamplingParams
from dualpace.plan.structs import RecordType
from tests.scheduler.plans import ROOMY
from tests.scheduler.toy import continuation

from .steps import PROMPT, at_rest, memory_of, step_until, wait_for


@pytest.fixture
def toy(remote):
    return remote(ROOMY)


def memory(toy):
    return memory_of(toy).rings[0]


def leave(toy):
    """The frontend leaves, and what it had ends."""
    control = memory(toy).control
    before = control.epoch
    toy.rings[0].close()
    toy.requests.clear()
    wait_for(lambda: control.epoch != before)
    at_rest(toy)


def test_nothing_that_was_asked_or_answered_is_left(toy):
    request = toy.submit([77] * 40, SamplingParams(max_tokens=30))
    step_until(toy, lambda: request.finish)
    assert any(memory(toy).arena)
    leave(toy)
    left = memory(toy)
    assert not any(left.arena)
    assert not any(bytes(left.tokens))
    assert not any(bytes(left.submits))


def test_the_next_epoch_cannot_be_foreseen(toy):
    epochs = []
    for _ in range(3):
        epochs.append(memory(toy).control.epoch)
        leave(toy)
        toy.rings[0] = toy.claim(0)
    assert len({later - sooner for sooner, later in pairwise(epochs)}) == 2
    assert all(epoch % 2 == 1 for epoch in epochs)


def test_answers_that_it_planted_are_not_heard(toy):
    left = memory(toy)
    foreseen = left.control.epoch + 2
    left.control.seen_epoch, left.control.token_written = foreseen, foreseen << 32 | 3
    for index in range(3):
        record = left.tokens[index]
        record.tag, record.index, record.token, record.finish = 0, index, 9, Finish.STOP if index == 2 else 0
        record.flag = foreseen << 32 | index + 1
    leave(toy)
    toy.rings[0] = toy.claim(0)
    toy.submitted = 0
    request = toy.submit(PROMPT, SamplingParams(max_tokens=20))
    step_until(toy, lambda: request.finish)
    assert (request.tokens, request.finish) == continuation(toy.plan, PROMPT, request.params)


def test_requests_of_an_epoch_that_it_made_up_end_with_it(toy):
    """Even epochs are nobody's; a frontend that writes one is served, and yet leaves nothing."""
    request = toy.submit(PROMPT, SamplingParams(max_tokens=60))
    step_until(toy, lambda: request.tokens)
    left = memory(toy)
    record = left.submits[0]
    assert record.type == RecordType.SUBMIT
    made_up = left.control.epoch + 1
    copy = bytes(left.arena)
    left.control.epoch = made_up
    ctypes.memmove(ctypes.addressof(left.arena), copy, len(copy))
    record.flag = made_up << 32 | 1
    for _ in range(20):
        toy.step()
    assert not toy.scheduler.at_rest()
    leave(toy)
    assert toy.scheduler.at_rest()
