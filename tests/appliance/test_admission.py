"""Room in the engine's queue: 429 where there is none. Room in the ring: waited for, and nothing left behind."""

import asyncio
import json
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress

import httpx2 as httpx
import pytest

from dualpace.appliance import limits
from dualpace.appliance.dispatch import Dispatcher
from dualpace.appliance.errors import ApiError, failed
from dualpace.engine.ring import Finish, SamplingParams, Status, TokenEvent

from .bundles import plan
from .conftest import ServeToy, wait_for
from .fake_ring import FakeRing
from .test_protocol import connected, post

BODY = {"model": "toy", "prompt": "hello", "max_tokens": 4}


class Narrow(FakeRing):
    """Has room for `room` prompts that have not had a step yet."""

    room = 2

    def submit(self, tag, prompt, params):
        unread = sum(running.count == 0 for running in self._running.values())
        return unread < self.room and super().submit(tag, prompt, params)


def test_what_the_ring_has_no_room_for_follows_in_order_as_there_is_some(serve: ServeToy):
    toy = serve(Narrow())
    prompts = [[token, token] for token in range(5, 13)]
    reply = toy.openai.completions.create(model="toy", prompt=prompts, n=2, max_tokens=4)
    assert [prompt for prompt, _ in toy.ring.submitted] == [prompt for prompt in prompts for _ in range(2)]
    assert [choice.finish_reason for choice in reply.choices] == ["length"] * 16
    assert reply.usage.completion_tokens == 64


def test_a_ring_that_is_full_holds_a_request_up_and_brings_no_tokens_that_would_wake_it(serve: ServeToy):
    toy = serve(FakeRing(full=True))
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(toy.http.post, "/v1/completions", json=BODY)
        wait_for(lambda: toy.dispatcher._held)
        toy.ring.full = False
        assert waiting.result(2).status_code == 200


def test_a_client_that_leaves_takes_what_is_held_along(serve: ServeToy):
    toy = serve(Narrow(held=True))
    with pytest.raises(httpx.ReadTimeout):
        toy.http.post("/v1/completions", json=BODY | {"n": 8}, timeout=0.3)
    wait_for(lambda: len(toy.ring.aborted) == 2)
    wait_for(lambda: not toy.dispatcher._routes)
    toy.ring.hold(False)
    assert toy.http.post("/v1/completions", json=BODY).status_code == 200
    assert len(toy.ring.submitted) == 3
    assert (toy.dispatcher._held, toy.dispatcher._queued_tokens) == ({}, 0)


def test_no_more_requests_than_the_engine_holds_are_under_way(serve: ServeToy):
    most = plan().schedule.max_requests
    toy = serve(FakeRing(held=True))
    with ThreadPoolExecutor(most) as pool:
        load = [pool.submit(toy.http.post, "/v1/completions", json=BODY | {"n": 8}) for _ in range(most // 8)]
        wait_for(lambda: toy.ring.running == most)
        refused = toy.http.post("/v1/completions", json=BODY)
        assert refused.status_code == 429
        assert int(refused.headers["retry-after"]) >= 1
        assert refused.json()["error"]["code"] == "queue_full"
        assert f"takes {most} requests at once" in refused.json()["error"]["message"]
        toy.ring.hold(False)
        assert {future.result().status_code for future in load} == {200}
    assert toy.http.post("/v1/completions", json=BODY).status_code == 200


def test_a_frontend_takes_its_share_of_the_queue_and_what_the_others_leave():
    schedule = plan().schedule

    def accepted(others: int) -> int:
        """How many requests one of four frontends takes while the others have so many."""

        class Shared(FakeRing):
            def status(self) -> Status:
                return super().status()._replace(running=8, waiting=others + self.running - 8)

        dispatcher = Dispatcher(Shared(held=True), schedule, frontends=4)
        with suppress(ApiError):
            while True:
                dispatcher.check_room()
                dispatcher.submit([([5], SamplingParams(max_tokens=4))], 0.0)
        return len(dispatcher._routes)

    assert accepted(others=schedule.max_requests) == schedule.max_requests // 4
    assert accepted(others=20) == schedule.max_requests - 20
    assert accepted(others=0) == schedule.max_requests


def test_what_has_no_room_is_refused_before_its_prompt_is_tokenised(serve: ServeToy, monkeypatch: pytest.MonkeyPatch):
    toy = serve(FakeRing(held=True))
    monkeypatch.setattr(toy.deployment.tokenizer, "encode", None)  # a failure, if it were called
    schedule = toy.deployment.plan.schedule.model_copy(update={"max_requests": 0})
    monkeypatch.setattr(toy.dispatcher, "_schedule", schedule)
    assert toy.http.post("/v1/completions", json=BODY).status_code == 429


def test_bodies_are_held_up_to_a_limit(serve: ServeToy, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(limits, "BODIES", 2)
    toy = serve(max_body="1KiB")
    whole = post(json.dumps(BODY | {"user": "x" * 900}).encode())
    with ExitStack() as stack:
        for _ in range(2):
            stack.enter_context(connected(toy)).sendall(whole[:-10])
        refused = stack.enter_context(connected(toy))
        refused.sendall(whole[:-10])
        answer = refused.recv(65536)
        assert answer.startswith(b"HTTP/1.1 503 ")
        assert b"2 times 1024 bytes" in answer
    wait_for(lambda: toy.http.post("/v1/completions", json=BODY | {"user": "x" * 900}).status_code == 200)


def test_queued_prompt_tokens_are_limited_until_their_first_token(serve: ServeToy, monkeypatch: pytest.MonkeyPatch):
    toy = serve(FakeRing(held=True))
    schedule = toy.deployment.plan.schedule.model_copy(update={"max_queued_tokens": 100})
    monkeypatch.setattr(toy.dispatcher, "_schedule", schedule)
    body = {"model": "toy", "prompt": [5] * 80, "max_tokens": 4}
    with ThreadPoolExecutor() as pool:
        first = pool.submit(toy.http.post, "/v1/completions", json=body)
        wait_for(lambda: toy.ring.running)
        refused = toy.http.post("/v1/completions", json=body)
        assert refused.status_code == 429
        assert "prompts of 100 tokens" in refused.json()["error"]["message"]
        toy.ring.hold(False)
        assert first.result().status_code == 200
    assert toy.http.post("/v1/completions", json=body).status_code == 200


def test_an_answer_that_fails_with_its_last_token_holds_up_no_other():
    async def delivered() -> list[object]:
        dispatcher = Dispatcher(FakeRing(held=True), plan().schedule)
        inboxes = [dispatcher.submit([([5], SamplingParams(max_tokens=1))], 0.0)[0] for _ in range(2)]

        def fail() -> bool:
            inboxes[0].take()
            inboxes[0].fail(failed("planted"))
            return False

        inboxes[0].listener = fail
        waiting = [asyncio.create_task(inbox.get()) for inbox in inboxes]
        await asyncio.sleep(0)
        dispatcher._deliver([TokenEvent(tag, 0, 7, 0.0, Finish.LENGTH, 1, 0) for tag in (1, 2)])
        return await asyncio.gather(*waiting, return_exceptions=True)

    failure, events = asyncio.run(delivered())
    assert isinstance(failure, ApiError)
    assert [event.token for _, event in events] == [7]
