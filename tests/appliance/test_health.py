import json
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import openai
import pytest

from dualpace.appliance import dispatch
from dualpace.appliance.health import Heartbeat
from dualpace.engine.ring import Finish, SamplingParams, TokenEvent
from dualpace.model.chat import ChatTemplate

from .conftest import Frontend, ServeToy, wait_for
from .fake_ring import FakeRing


def test_a_living_engine_is_healthy(toy: Frontend):
    response = toy.http.get("/health")
    assert (response.status_code, response.json()["status"]) == (200, "ok")


def test_a_stall_shows_within_two_seconds_and_passes_with_it(serve: ServeToy):
    toy = serve()
    assert toy.http.get("/health").status_code == 200
    toy.ring.stalled = True
    stalled = time.monotonic()
    wait_for(lambda: toy.http.get("/health").status_code == 503)
    assert time.monotonic() - stalled < 2
    assert "heartbeat stopped" in toy.http.get("/health").json()["reason"]
    with pytest.raises(openai.InternalServerError, match="heartbeat stopped"):
        toy.openai.completions.create(model="toy", prompt="x")
    toy.ring.stalled = False
    assert toy.http.get("/health").status_code == 200


def test_only_a_long_stall_asks_for_a_new_process(serve: ServeToy, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(dispatch, "GIVE_UP_S", 2.0)
    toy = serve()
    toy.ring.stalled = True
    wait_for(lambda: toy.http.get("/health/ready").status_code == 503)
    assert toy.http.get("/health/live").status_code == 200
    wait_for(lambda: toy.http.get("/health/live").status_code == 503)
    assert "heartbeat stopped" in toy.http.get("/health/live").json()["reason"]


def test_an_engine_that_loads_for_long_lives(serve: ServeToy, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(dispatch, "GIVE_UP_S", 0.0)
    toy = serve(FakeRing(ready=False, stalled=True))
    assert toy.http.get("/health/ready").status_code == 503
    assert toy.http.get("/health/live").status_code == 200


@pytest.mark.parametrize(
    ("state", "reason"), [({"ready": False}, "loading the model"), ({"alive": False}, "engine has stopped")]
)
def test_an_engine_that_cannot_serve_says_why(serve: ServeToy, state: dict[str, bool], reason: str):
    toy = serve(FakeRing(**state))
    response = toy.http.get("/health")
    assert response.status_code == 503
    assert reason in response.json()["reason"]
    refused = toy.http.post("/v1/completions", json={"model": "toy", "prompt": "x"})
    assert refused.status_code == 503
    assert reason in refused.json()["error"]["message"]
    assert "retry-after" in refused.headers


def test_requests_under_way_are_given_up_after_a_long_stall(serve: ServeToy, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(dispatch, "GIVE_UP_S", 1.6)
    toy = serve(FakeRing(held=True))
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(toy.http.post, "/v1/completions", json={"model": "toy", "prompt": "x"})
        wait_for(lambda: toy.ring.running)
        toy.ring.stalled = True
        assert waiting.result(5).status_code == 503
    wait_for(lambda: toy.ring.aborted)


def test_what_ends_while_the_ring_is_found_full_is_not_submitted_again(serve: ServeToy):
    class Leaving(FakeRing):
        """The first request finds no room, and the engine goes away before the frontend hears of it."""

        def submit(self, tag: int, prompt: Sequence[int], params: SamplingParams) -> bool:
            if not self.left:
                with self._changed:
                    self.left = tag
                    self._ended.append(TokenEvent(tag, 0, -1, 0.0, Finish.ENGINE_GONE, 0, 0))
                    self._changed.notify_all()
            # Whoever looks at what is held before the end is heard of tries once more.
            return tag != self.left and super().submit(tag, prompt, params)

        left = 0

    toy = serve(Leaving())
    assert toy.http.post("/v1/completions", json={"model": "toy", "prompt": "gone"}).status_code >= 500
    assert toy.http.post("/v1/completions", json={"model": "toy", "prompt": "x"}).status_code == 200
    assert [prompt for prompt, _ in toy.ring.submitted] == [toy.encode("x")]


def test_a_token_ring_that_cannot_be_read_ends_every_request_and_shows(serve: ServeToy):
    def broken(prompt: object, params: object) -> Iterator[int]:
        yield 5
        raise ValueError("7 is not a valid Finish")

    toy = serve(FakeRing(play=broken))
    assert toy.http.post("/v1/completions", json={"model": "toy", "prompt": "x"}).status_code == 503
    assert "cannot be read" in toy.http.get("/health").json()["reason"]


def test_health_answers_beside_1280_requests_at_once(serve: ServeToy):
    toy = serve(FakeRing(held=True))
    body = json.dumps({"model": "toy", "prompt": "hello " * 20, "max_tokens": 50}).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
    request = head.encode() + b"\r\nConnection: close\r\n\r\n" + body
    with ExitStack() as stack:
        clients = [stack.enter_context(socket.create_connection(toy.address)) for _ in range(1280)]
        for client in clients:
            client.sendall(request)
        started = time.process_time()  # of which the server is a part; other processes may slow both down
        assert toy.http.get("/health", timeout=60).status_code == 200
        assert time.process_time() - started < 2
        wait_for(lambda: toy.ring.running == toy.deployment.plan.schedule.max_requests, seconds=60)
        toy.ring.hold(False)
        statuses = Counter(client.makefile("rb").readline().split()[1] for client in clients)
    assert set(statuses) == {b"200", b"429"}
    assert statuses[b"200"] >= toy.deployment.plan.schedule.max_requests


def test_health_answers_while_a_long_text_is_tokenised(serve: ServeToy, monkeypatch: pytest.MonkeyPatch):
    toy = serve()
    monkeypatch.setattr(toy.deployment.tokenizer, "most_bytes", None)
    encode = toy.deployment.tokenizer.encode
    begun, end = threading.Event(), threading.Event()

    def long_encode(text: str, **how: bool) -> list[int]:
        begun.set()
        assert end.wait(60)
        return encode(text, **how)

    monkeypatch.setattr(toy.deployment.tokenizer, "encode", long_encode)
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(
            toy.http.post, "/v1/completions", json={"model": "toy", "prompt": "the quick fox " * 1000}
        )
        assert begun.wait(10)
        assert {toy.http.get("/health").status_code for _ in range(5)} == {200}
        assert not waiting.done()
        end.set()
    assert waiting.result().json()["error"]["code"] == "context_length_exceeded"


def test_many_messages_with_little_in_them_are_a_long_text(serve: ServeToy, monkeypatch: pytest.MonkeyPatch):
    def render(self: ChatTemplate, messages: Sequence[object], **_: object) -> str:
        threads.append(threading.current_thread().name)
        return "x"

    threads: list[str] = []
    monkeypatch.setattr(ChatTemplate, "render", render)
    toy = serve()
    for path in ("/v1/chat/completions", "/tokenize"):
        for messages in ([{"role": "user", "content": ""}] * 400, [{"role": "user", "content": "", "name": "x" * 999}]):
            assert toy.http.post(path, json={"model": "toy", "messages": messages}).status_code == 200
    assert len(threads) == 4
    assert all(name.startswith("aside") for name in threads), threads


def test_the_heartbeat_counts_from_when_it_last_moved():
    ring, now = FakeRing(), [100.0]
    heartbeat = Heartbeat(ring.status, lambda: now[0])
    assert heartbeat.unavailable() is None
    ring.stalled = True
    now[0] += 1.4
    assert heartbeat.unavailable() is None
    now[0] += 0.2
    assert heartbeat.unavailable() == "the engine's heartbeat stopped 1.6 s ago"
    ring.stalled = False
    assert heartbeat.unavailable() is None
