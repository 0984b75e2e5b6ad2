"""Room in the engine's queue: 429 where there is none, and nothing left behind."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from .bundles import plan
from .conftest import ServeToy, wait_for
from .fake_ring import FakeRing

BODY = {"model": "toy", "prompt": "hello", "max_tokens": 4}


def test_a_full_ring_is_too_many_requests_with_a_time_to_retry(serve: ServeToy):
    toy = serve(FakeRing(full=True))
    response = toy.http.post("/v1/completions", json=BODY)
    assert response.status_code == 429
    assert int(response.headers["retry-after"]) >= 1
    assert response.json()["error"]["code"] == "queue_full"
    toy.ring.full = False
    assert toy.http.post("/v1/completions", json=BODY).status_code == 200


def test_a_ring_that_fills_up_within_a_request_takes_none_of_it(serve: ServeToy):
    class TwoPlaces(FakeRing):
        def submit(self, tag, prompt, params):
            return len(self.submitted) < 2 and super().submit(tag, prompt, params)

    toy = serve(TwoPlaces(held=True))
    assert toy.http.post("/v1/completions", json=BODY | {"n": 3}).status_code == 429
    assert len(toy.ring.aborted) == 2


def test_no_more_requests_than_the_engine_holds_are_under_way(serve: ServeToy):
    most = plan().schedule.max_requests
    toy = serve(FakeRing(held=True))
    with ThreadPoolExecutor(most) as pool:
        load = [pool.submit(toy.http.post, "/v1/completions", json=BODY | {"n": 8}) for _ in range(most // 8)]
        wait_for(lambda: toy.ring.running == most)
        assert toy.http.post("/v1/completions", json=BODY).status_code == 429
        toy.ring.hold(False)
        assert {future.result().status_code for future in load} == {200}
    assert toy.http.post("/v1/completions", json=BODY).status_code == 200


def test_queued_prompt_tokens_are_limited_until_their_first_token(serve: ServeToy, monkeypatch: pytest.MonkeyPatch):
    toy = serve(FakeRing(held=True))
    schedule = toy.deployment.plan.schedule.model_copy(update={"max_queued_tokens": 100})
    monkeypatch.setattr(toy.dispatcher, "_schedule", schedule)
    body = {"model": "toy", "prompt": [5] * 80, "max_tokens": 4}
    with ThreadPoolExecutor() as pool:
        first = pool.submit(toy.http.post, "/v1/completions", json=body)
        wait_for(lambda: toy.ring.running)
        assert toy.http.post("/v1/completions", json=body).status_code == 429
        toy.ring.hold(False)
        assert first.result().status_code == 200
    assert toy.http.post("/v1/completions", json=body).status_code == 200
