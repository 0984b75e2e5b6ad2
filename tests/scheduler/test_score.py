"""Logprobs of a prompt: each of its tokens from the second on has one, once, in order, before any token generated."""

import math

import numpy as np
import pytest

from dualpace.engine.ring import Finish, SamplingParams
from dualpace.plan.structs import StepKind

from .plans import ROOMY, VOCAB, small_plan
from .toy import foretold

PAGE = ROOMY.attention.page_size
CHUNK = ROOMY.schedule.prefill_chunk
SAMPLES = ROOMY.schedule.programs[-1].samples
TEXT = [(7 * i * i + i) % VOCAB for i in range(96)]


def run(toy, prompt, **params):
    request = toy.submit(prompt, SamplingParams(**{"prompt_logprobs": 0, **params}))
    toy.drain()
    toy.check()
    return request


@pytest.mark.parametrize("max_tokens", [0, 1, 3])
@pytest.mark.parametrize("length", [1, 2, PAGE, PAGE + 1, CHUNK, CHUNK + 1, 80])
def test_every_token_but_the_first_has_one(toys, plan, length, max_tokens):
    toy = toys(plan)
    request = run(toy, TEXT[:length], max_tokens=max_tokens, prompt_logprobs=1)
    assert request.scores == foretold(plan, TEXT[:length])
    assert (request.finish, len(request.tokens)) == (Finish.LENGTH, max_tokens)
    status = toy.rings[0].status()
    assert (status.finished, status.failed, status.generated) == (1, 0, max_tokens)


def test_a_prompt_of_the_whole_context_can_be_asked_about(toys):
    request = run(toys(ROOMY), TEXT[: ROOMY.schedule.max_context], max_tokens=0)
    assert len(request.scores) == ROOMY.schedule.max_context - 1


def test_a_prompt_may_be_computed_for_its_pages_alone(toys):
    toy = toys(ROOMY)
    request = run(toy, TEXT[: 2 * PAGE + 1], max_tokens=0, prompt_logprobs=None)
    assert (request.finish, request.scores, request.tokens) == (Finish.LENGTH, [], [])
    assert run(toy, TEXT[: 2 * PAGE + 1], max_tokens=1, prompt_logprobs=None).cached == 2 * PAGE


def test_what_was_computed_before_is_computed_again_and_others_find_it(toys):
    toy = toys(ROOMY)
    for _ in range(2):
        request = run(toy, TEXT[:40], max_tokens=1)
        assert (request.cached, len(request.scores)) == (0, 39)
    assert run(toy, TEXT[:40], max_tokens=1, prompt_logprobs=None).cached == 4 * PAGE


def test_a_step_looks_at_a_bounded_number_of_logits(toys):
    toy = toys(ROOMY)
    first, second = (toy.submit(TEXT[:80], SamplingParams(max_tokens=2, prompt_logprobs=0)) for _ in range(2))
    plain = toy.submit(TEXT[30:70], SamplingParams(max_tokens=1))
    samples = []
    while not (first.finish and second.finish):
        step = toy.step()
        samples.append(step.samples)
        toy.read()
        if len(samples) == 2:
            assert (step.kind, step.scored) == (StepKind.MIXED, SAMPLES - 1)
            # One that asks takes no more of a step than its share, so there is room for one that does not.
            assert step.tokens == CHUNK
    assert max(samples) == SAMPLES
    assert plain.finish
    toy.drain()
    toy.check()


def test_a_row_beside_a_full_batch_goes_on_by_a_token_a_step(toys):
    plan = small_plan("full", samples=2, max_batch=2)
    toy = toys(plan)
    toy.submit(TEXT[:9], SamplingParams(max_tokens=60))
    toy.step()
    request = toy.submit(TEXT[:20], SamplingParams(max_tokens=0, prompt_logprobs=0))
    assert [toy.step().scored for _ in range(3)] == [1, 1, 1]
    toy.drain()
    toy.check()
    assert request.finish is Finish.LENGTH


def test_a_ring_without_room_holds_up_its_own_prompt_alone(toys):
    toy = toys(small_plan("two rings", rings=2, token_slots=16))
    stalled = toy.submit(TEXT[:60], SamplingParams(max_tokens=0, prompt_logprobs=0), ring=0)
    other = toy.submit(TEXT[20:80], SamplingParams(max_tokens=2, prompt_logprobs=0), ring=1)
    for _ in range(200):
        toy.step()
        toy.read(ring=1)
    assert (other.finish, len(other.scores)) == (Finish.LENGTH, 59)
    assert toy.step().kind is StepKind.IDLE
    toy.read(ring=0)
    assert len(stalled.scores) == 16
    toy.drain()
    toy.check()


def test_a_preempted_row_goes_on_where_it_was(toys):
    toy = toys(small_plan("pair", pages=(13,), max_batch=2, samples=3))
    first = toy.submit(TEXT[:9], SamplingParams(max_tokens=80))
    toy.step()
    second = toy.submit(TEXT[9:80], SamplingParams(max_tokens=4, prompt_logprobs=0))
    preempted_at = 0
    while not second.finish:
        toy.step()
        toy.read()
        if toy.rings[0].status().preempted and not preempted_at:
            preempted_at = len(second.scores)
    assert 0 < preempted_at < 70
    toy.drain()
    toy.check()
    assert first.finish is Finish.LENGTH


@pytest.mark.parametrize("bad", [0, 2, SAMPLES - 3, SAMPLES - 2])
def test_logits_that_are_no_number_end_the_request_after_what_came_before(toys, bad):
    toy = toys(ROOMY)
    # Both rows have a token drawn in the step, behind the logprobs.
    scored = SAMPLES - 2
    request = toy.submit(TEXT[: scored + 1], SamplingParams(max_tokens=3, prompt_logprobs=0))
    good = toy.submit(TEXT[20:25], SamplingParams(max_tokens=3))
    step = toy.step()
    assert (step.scored, step.samples) == (scored, SAMPLES)
    toy.scheduler.buffers["sampled"][bad:scored] = -1
    toy.scheduler.buffers["sampled"][scored] = -1 if bad == scored else 5
    toy.drain()
    assert (request.finish, request.tokens) == (Finish.ERROR, [])
    assert request.scores == foretold(ROOMY, TEXT[: scored + 1])[:bad]
    assert (good.finish, len(good.tokens)) == (Finish.LENGTH, 3)
    status = toy.rings[0].status()
    assert (status.nonfinite, status.failed, status.finished, status.generated) == (1, 1, 1, 3)
    assert toy.scheduler.at_rest()


def scored(toy, prompt, logits, **params):
    """The events of one request whose logits after the token at position `p` are `logits[p]`."""
    toy.rings[0].submit(0, prompt, SamplingParams(**params))
    events = []
    while not (events and events[-1].finish):
        step = toy.scheduler.schedule()
        if step.samples:
            at = toy.scheduler.buffers["position"][toy.scheduler.buffers["sample_index"][: step.samples]]
            rows = np.ascontiguousarray(logits[at], dtype=np.float32)
            toy.scheduler.sample(rows.ctypes.data, rows.shape[1])
        events += toy.rings[0].wait(0)
    return events


def test_the_engines_own_sampler_gives_the_models_logprobs(toys):
    logits = np.random.default_rng(3).normal(0, 2, (40, VOCAB)).astype(np.float32)
    expected = logits - np.log(np.exp(logits.astype(np.float64)).sum(1, keepdims=True))
    events = scored(
        toys(ROOMY), TEXT[:40], logits, max_tokens=1, prompt_logprobs=3, logprobs=1, temperature=0.0,
        repetition_penalty=2.0, logit_bias=((TEXT[3], 50.0),),
    )  # fmt: skip
    assert [(event.of_prompt, event.index) for event in events] == [(True, n) for n in range(1, 40)] + [(False, 0)]
    assert [event.token for event in events[:-1]] == TEXT[1:40]
    for row, event in zip(expected, events[:-1], strict=False):
        order = np.argsort(-row)[:3]
        assert event.logprob == pytest.approx(row[event.token], abs=1e-5)
        assert [token for token, _ in event.top] == order.tolist()
        assert [logprob for _, logprob in event.top] == pytest.approx(row[order], abs=1e-5)
    assert len(events[-1].top) == 1


def test_a_token_that_cannot_come_has_a_logprob_of_minus_infinity(toys, libraries):
    toy = toys(ROOMY)
    toy.scheduler.close()
    toy.scheduler = type(toy.scheduler)(libraries(ROOMY).engine, toy.memory, ROOMY, vocabulary=50)
    logits = np.zeros((3, VOCAB))
    logits[0, 7] = -math.inf
    events = scored(toy, [5, 7, 60], logits, max_tokens=0, prompt_logprobs=20)
    assert [event.logprob for event in events[:2]] == [-math.inf, -math.inf]
    assert all(token < 50 and token != 7 for token, _ in events[0].top)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_the_engines_own_sampler_notices_what_is_no_number(toys, value):
    logits = np.zeros((3, VOCAB))
    logits[1, 9] = value
    events = scored(toys(ROOMY), [5, 7, 60], logits, max_tokens=3, prompt_logprobs=0)
    assert [(event.of_prompt, event.finish) for event in events] == [(True, Finish.NONE), (False, Finish.ERROR)]


def test_more_tops_than_there_are_never_enter_a_ring(toys):
    with pytest.raises(ValueError, match="prompt_logprobs asks for the 21 most probable tokens, at most 20"):
        toys(ROOMY).submit([1], SamplingParams(max_tokens=1, prompt_logprobs=21))
