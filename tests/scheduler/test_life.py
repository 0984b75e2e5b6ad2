"""The life of a request: each has one end, at the right time, for the right reason, and troubles nobody else."""

import math

import numpy as np
import pytest

from dualpace.engine.ring import Finish, SamplingParams
from dualpace.plan.structs import Route, StepKind

from .plans import FORGETFUL, ROOMY, TIGHT, VOCAB, small_plan
from .toy import continuation

PROMPT = [5, 17, 60, 2, 44]
PAGE = ROOMY.attention.page_size


def run(toy, prompt, **params):
    request = toy.submit(prompt, SamplingParams(**params))
    toy.drain()
    toy.check()
    return request


@pytest.mark.parametrize("length", [1, PAGE - 1, PAGE, PAGE + 1, 15, 16, 17, 33, 80])
def test_prompts_around_the_page_and_the_chunk(toys, length):
    request = run(toys(ROOMY), [i % VOCAB for i in range(length)], max_tokens=10)
    assert request.finish is Finish.LENGTH
    assert len(request.tokens) == 10


def test_a_stop_id_ends_a_request_and_is_its_last_token(toys):
    text, _ = continuation(ROOMY, PROMPT, SamplingParams(max_tokens=20))
    stop = text[6]
    request = run(toys(ROOMY), PROMPT, max_tokens=20, stop_tokens=(96 if stop != 96 else 95, stop))
    assert request.finish is Finish.STOP
    assert request.tokens == text[: text.index(stop) + 1]


def test_the_context_is_a_limit_that_can_be_reached(toys):
    context = ROOMY.schedule.max_context
    request = run(toys(ROOMY), PROMPT, max_tokens=context - len(PROMPT))
    assert len(request.tokens) + len(PROMPT) == context


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"prompt": []}, "prompt is empty"),
        ({"prompt": [VOCAB]}, f"prompt holds the token id {VOCAB}; ids are from 0 to {VOCAB - 1}"),
        ({"prompt": [-1]}, "prompt holds the token id -1"),
        ({"max_tokens": 92}, "5 prompt tokens and max_tokens 92 exceed the context of 96 tokens"),
        ({"max_tokens": 2**32 + 1}, "max_tokens is 4294967297"),
        ({"prompt": [2**32]}, "prompt, stop_tokens or logit_bias"),
        ({"min_tokens": 9}, "min_tokens is 9"),
        ({"stop_tokens": (VOCAB,)}, "stop_tokens holds the token id"),
        ({"stop_tokens": tuple(range(33))}, "stop_tokens has 33 ids"),
        ({"temperature": -0.1}, "temperature is -0.1"),
        ({"temperature": math.nan}, "temperature is nan"),
        ({"top_k": -1}, "top_k is -1"),
        ({"priority": 256}, "priority is 256; it has to be from 0 to 255"),
        ({"top_p": 0.0}, "top_p is 0"),
        ({"min_p": 1.5}, "min_p is 1.5"),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else "",
)
def test_what_cannot_be_served_never_enters_a_ring(toys, change, words):
    toy = toys(ROOMY)
    values = {"max_tokens": 4, **change}
    prompt = values.pop("prompt", PROMPT)
    with pytest.raises(ValueError, match=words):
        toy.submit(prompt, SamplingParams(**values))
    toy.drain()
    assert toy.rings[0].status().accepted == 0


def test_each_request_that_is_taken_ends_once_also_one_that_is_aborted_before(toys):
    toy = toys(ROOMY)
    toy.submit(PROMPT, SamplingParams(max_tokens=5))
    toy.abort(toy.submit(PROMPT, SamplingParams(max_tokens=5)))
    toy.drain()
    status = toy.rings[0].status()
    assert (status.accepted, status.finished, status.aborted) == (2, 1, 1)


def test_an_abort_frees_pages_within_a_step(toys):
    toy = toys(ROOMY)
    request = toy.submit(PROMPT, SamplingParams(max_tokens=50))
    for _ in range(5):
        toy.step()
    toy.abort(request)
    toy.step()
    assert toy.scheduler.at_rest()
    toy.read()
    assert request.finish is Finish.ABORT
    assert toy.rings[0].status().aborted == 1


def test_a_frontend_that_has_enough_ends_its_request_with_a_stop(toys):
    toy = toys(ROOMY)
    running, waiting = (toy.submit(PROMPT, SamplingParams(max_tokens=50)) for _ in range(2))
    toy.finish(waiting)
    for _ in range(5):
        toy.step()
    # The first word counts.
    toy.finish(running)
    toy.abort(running)
    toy.drain()
    toy.check()
    assert [(request.finish, len(request.tokens)) for request in (running, waiting)] == [
        (Finish.STOP, 5),
        (Finish.STOP, 0),
    ]
    status = toy.rings[0].status()
    assert (status.finished, status.aborted) == (2, 0)


def test_a_higher_priority_is_served_first_within_its_ring(toys):
    toy = toys(small_plan("priorities", max_batch=1, queue=12))
    order = []
    requests = [toy.submit(PROMPT, SamplingParams(max_tokens=2, priority=p)) for p in (0, 1, 0, 7, 1)]
    toy.step()
    while len(order) < len(requests):
        toy.step()
        toy.read()
        order += [p for p, request in enumerate(requests) if request.finish and p not in order]
    assert order == [3, 1, 4, 0, 2]


def test_a_low_priority_is_overtaken_only_so_often(toys):
    plan = small_plan("patience", max_batch=1, queue=12)
    toy = toys(plan)
    low = toy.submit(PROMPT, SamplingParams(max_tokens=1))
    served = 0
    while not low.finish:
        while toy.submit(PROMPT, SamplingParams(max_tokens=1, priority=1)):
            pass
        toy.step()
        toy.read()
        served = sum(request.finish is not Finish.NONE for request in toy.requests.values())
        assert served < 40
    assert served > 10


def test_the_status_says_how_much_waits(toys):
    toy = toys(small_plan("waiting", max_batch=1, queue=4))
    for length in (3, 5, 9):
        toy.submit([1] * length, SamplingParams(max_tokens=60))
    toy.step()
    status = toy.rings[0].status()
    assert (status.running, status.waiting, status.waiting_tokens) == (1, 2, 14)


def test_an_abort_overtakes_a_request_that_the_queue_has_no_place_for(toys):
    toy = toys(small_plan("one place", max_batch=1, queue=1))
    requests = [toy.submit(PROMPT, SamplingParams(max_tokens=80)) for _ in range(3)]
    # One runs, one waits, and the third is held up in the ring.
    for _ in range(3):
        toy.step()
    toy.abort(requests[2])
    toy.abort(requests[1])
    for _ in range(2):
        toy.step()
        toy.read()
    assert [request.finish for request in requests] == [Finish.NONE, Finish.ABORT, Finish.ABORT]
    toy.drain()
    toy.check()


def test_an_abort_of_what_has_ended_changes_nothing(toys):
    toy = toys(ROOMY)
    request = toy.submit(PROMPT, SamplingParams(max_tokens=1))
    toy.step()
    toy.step()
    toy.abort(request)
    toy.drain()
    assert request.finish is Finish.LENGTH
    assert toy.rings[0].status().aborted == 0


def test_a_reader_that_stalls_pauses_its_own_rows_alone(toys):
    toy = toys(TIGHT)
    stalled = toy.submit(PROMPT, SamplingParams(max_tokens=60), ring=0)
    other = toy.submit(PROMPT, SamplingParams(max_tokens=60), ring=1)
    for _ in range(200):
        toy.step()
        toy.read(ring=1)
    assert other.finish is Finish.LENGTH
    assert toy.step().kind is StepKind.IDLE
    assert not toy.scheduler.wait(0.01)
    toy.read(ring=0)
    assert len(stalled.tokens) == TIGHT.rings.token_slots
    assert toy.scheduler.wait(0.01)
    toy.drain()
    toy.check()


def test_rings_take_turns(toys):
    plan = small_plan("turns", max_batch=1, rings=2, queue=12, request_slots=8)
    toy = toys(plan)
    many = [toy.submit(PROMPT, SamplingParams(max_tokens=4), ring=0) for _ in range(6)]
    toy.step()
    one = toy.submit(PROMPT, SamplingParams(max_tokens=4), ring=1)
    while not one.finish:
        toy.step()
        toy.read(0)
        toy.read(1)
    assert sum(request.finish != Finish.NONE for request in many) <= 2


def test_a_long_prompt_does_not_hold_up_decoding(toys):
    toy = toys(ROOMY)
    first = toy.submit(PROMPT, SamplingParams(max_tokens=40))
    toy.step()
    toy.submit([1] * 80, SamplingParams(max_tokens=2))
    for expected in range(1, 6):
        step = toy.step()
        toy.read()
        assert step.kind is StepKind.MIXED
        assert step.tokens == 1 + ROOMY.schedule.prefill_chunk
        assert len(first.tokens) == expected
    toy.drain()
    toy.check()


def test_a_row_with_a_nan_ends_with_an_error_and_the_others_go_on(toys):
    toy = toys(ROOMY)
    bad, good = (toy.submit(PROMPT, SamplingParams(max_tokens=9)) for _ in range(2))
    toy.step()
    toy.scheduler.buffers["sampled"][0] = -1
    toy.drain()
    assert (bad.finish, bad.tokens) == (Finish.ERROR, [])
    assert (good.finish, len(good.tokens)) == (Finish.LENGTH, 9)
    assert toy.rings[0].status().nonfinite == 1
    assert toy.scheduler.at_rest()


def test_padding_of_the_vocabulary_is_not_a_token(toys):
    toy = toys(ROOMY)
    request = toy.submit(PROMPT, SamplingParams(max_tokens=9))
    toy.step()
    toy.scheduler.buffers["sampled"][0] = VOCAB
    toy.drain()
    assert request.finish is Finish.ERROR


def test_the_engines_own_sampler_obeys_the_requests(toys):
    toy = toys(ROOMY)
    greedy = toy.submit(PROMPT, SamplingParams(max_tokens=3, temperature=0.0))
    held = toy.submit(PROMPT, SamplingParams(max_tokens=3, min_tokens=2, temperature=0.0, stop_tokens=(10,)))
    logits = np.zeros((8, VOCAB), dtype=np.float32)
    logits[:, 10], logits[:, 20] = 5, 4
    while toy.scheduler.schedule().kind is not StepKind.IDLE:
        toy.scheduler.sample(logits.ctypes.data, VOCAB)
    toy.read()
    assert (greedy.tokens, greedy.finish) == ([10, 10, 10], Finish.LENGTH)
    # The stop id is not sampled before min_tokens, rather than passed over.
    assert (held.tokens, held.finish) == ([20, 20, 10], Finish.STOP)


def test_prompts_that_wait_for_history_do_not_hold_up_who_has_it(toys):
    toy = toys(FORGETFUL)
    context, page = FORGETFUL.schedule.max_context, FORGETFUL.schedule.history_page
    first, second = (toy.submit([i] * 40, SamplingParams(max_tokens=context - 40), ring=0) for i in (1, 2))
    while toy.rings[0].status().preempted == 0:
        toy.step()
        toy.read(0)
    # These wait for what the preempted one and its ring are owed.
    toy.submit([3] * 5 * page, SamplingParams(max_tokens=context - 5 * page), ring=1)
    toy.submit([4] * 2 * page, SamplingParams(max_tokens=1), ring=1)
    toy.drain(limit=400)
    toy.check()
    assert (first.finish, second.finish) == (Finish.LENGTH, Finish.LENGTH)


def test_what_attention_did_in_a_step_is_counted_for_all_layers(toys):
    toy = toys(ROOMY)
    attention = toy.scheduler.buffers["attention"]
    layers = [len(group.layers) for group in ROOMY.model.groups]
    toy.submit(PROMPT, SamplingParams(max_tokens=5))
    forwards = 0
    while toy.scheduler.buffers is not None and not toy.rings[0].status().finished:
        routes = (Route.SPLIT, Route.WORKQUEUE, Route.FLASHINFER, Route.HOST)
        forwards += toy.step().kind is not StepKind.IDLE
        for group in range(len(layers)):
            attention[group] = (routes[forwards % len(routes)], 0, 5, 1, 700, 30)
        toy.read()
    toy.check()
    status = toy.rings[0].status()
    assert status.attention_bytes == 700 * sum(layers) * forwards
    assert status.attention_merge_bytes == 30 * sum(layers) * forwards
    assert status.attention_items == 5 * sum(layers) * forwards
    assert status.attention_launches == sum(layers) * forwards
    steps = (status.split_steps, status.workqueue_steps, status.flashinfer_steps, status.host_steps)
    assert sum(steps) == len(layers) * forwards
    assert min(steps) > 0
