"""What a ring does for its frontend, whichever transport carries it."""

import pytest

from dualpace.engine.ring import Finish, SamplingParams
from tests.scheduler.plans import ROOMY, TIGHT
from tests.scheduler.toy import continuation, foretold, random_run

from .steps import PROMPT, at_rest, step_until, wait_for


def test_a_request_is_answered(toys):
    toy = toys(ROOMY)
    request = toy.submit(PROMPT, SamplingParams(max_tokens=20))
    step_until(toy, lambda: request.finish)
    assert (request.tokens, request.finish) == continuation(toy.plan, PROMPT, request.params)
    toy.step()
    assert toy.scheduler.at_rest()


@pytest.mark.parametrize("length", [1, 7, 8, 9, 95])
def test_prompts_of_any_length_up_to_the_context_arrive_whole(toys, length):
    toy = toys(ROOMY)
    prompt = [(7 * i + length) % 97 for i in range(length)]
    request = toy.submit(prompt, SamplingParams(max_tokens=1))
    step_until(toy, lambda: request.finish)
    assert (request.tokens, request.finish) == continuation(toy.plan, prompt, request.params)


def test_log_probabilities_come_with_their_tokens(toys):
    toy = toys(ROOMY)
    request = toy.submit(PROMPT, SamplingParams(max_tokens=0, prompt_logprobs=1))
    step_until(toy, lambda: request.finish)
    assert request.scores == foretold(toy.plan, PROMPT)


def test_an_abort_ends_one_request_and_no_other(toys):
    toy = toys(ROOMY)
    ended, other = (toy.submit(PROMPT, SamplingParams(max_tokens=60)) for _ in range(2))
    step_until(toy, lambda: ended.tokens)
    toy.abort(ended)
    step_until(toy, lambda: ended.finish)
    assert ended.finish is Finish.ABORT
    step_until(toy, lambda: other.finish)
    assert (other.tokens, other.finish) == continuation(toy.plan, PROMPT, other.params)


def test_a_request_that_has_enough_is_finished(toys):
    toy = toys(ROOMY)
    request = toy.submit(PROMPT, SamplingParams(max_tokens=60))
    step_until(toy, lambda: request.tokens)
    toy.finish(request)
    step_until(toy, lambda: request.finish)
    assert request.finish is Finish.STOP


def test_a_ring_that_is_full_takes_more_once_the_engine_has_read(toys):
    toy = toys(TIGHT)
    slots = toy.plan.rings.request_slots
    taken = [toy.submit([1, 2, 3], SamplingParams(max_tokens=1)) for _ in range(slots)]
    assert all(taken)
    assert toy.submit([1, 2, 3], SamplingParams(max_tokens=1)) is None
    more = []

    def again():
        if not more and (request := toy.submit([1, 2, 3], SamplingParams(max_tokens=1))):
            more.append(request)
        return more and more[0].finish

    step_until(toy, again)
    toy.drain()
    toy.check()


def test_the_engines_status_is_shown(toys):
    toy = toys(ROOMY)
    ring = toy.rings[0]
    toy.scheduler.announce(ready=True)
    toy.step()
    wait_for(lambda: ring.wait(0.05) or ring.status().ready)
    assert ring.status().alive
    assert ring.status().total_pages == toy.plan.pages[0].pages


def test_an_engine_that_stops_ends_what_it_has_not_answered(toys):
    toy = toys(ROOMY)
    request = toy.submit(PROMPT, SamplingParams(max_tokens=60))
    step_until(toy, lambda: request.tokens)
    toy.scheduler.announce(stopped=True)

    def told():
        for event in toy.rings[0].wait(0.05):
            request.take(event._replace(prompt_tokens=len(PROMPT), index=len(request.tokens)))
        return request.finish

    wait_for(told)
    assert request.finish is Finish.ENGINE_GONE


def test_a_ring_that_is_given_up_is_free_for_the_next(toys):
    toy = toys(ROOMY)
    request = toy.submit(PROMPT, SamplingParams(max_tokens=60))
    step_until(toy, lambda: request.tokens)
    toy.rings[0].close()
    toy.requests.clear()
    at_rest(toy)
    toy.rings[0] = toy.claim(0)
    request = toy.submit(PROMPT, SamplingParams(max_tokens=5))
    step_until(toy, lambda: request.finish)
    assert len(request.tokens) == 5


@pytest.mark.parametrize("seed", range(2))
def test_any_run_ends_as_it_should(toys, seed):
    """Bursts, aborts, stalls and preemption over rings that wrap all the time."""
    toy = toys(TIGHT)
    random_run(toy, seed, 120)
    toy.drain()
    toy.check()
