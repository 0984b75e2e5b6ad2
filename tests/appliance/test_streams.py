"""Streams and how they end: stop strings, failures, clients that leave or do not read."""

import asyncio
import json
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx2 as httpx
import openai
import pytest

from dualpace.appliance import dispatch, server
from dualpace.appliance import stream as stream_module
from dualpace.appliance.deployment import load
from dualpace.appliance.dispatch import Dispatcher
from dualpace.appliance.generate import Delta, Generation
from dualpace.appliance.schema import CompletionRequest
from dualpace.appliance.validate import completion_job
from dualpace.engine.ring import Finish

from .bundles import write_bundle
from .conftest import Frontend, ServeToy, wait_for
from .fake_ring import FakeRing


def events(response: httpx.Response) -> list[object]:
    """Payloads of a whole event stream; `[DONE]` stays text."""
    frames = response.text.split("\n\n")
    assert frames.pop() == ""
    payloads = [frame.removeprefix("data: ") for frame in frames]
    return [payload if payload == "[DONE]" else json.loads(payload) for payload in payloads]


def stream(toy: Frontend, **fields: object) -> list[object]:
    response = toy.http.post("/v1/completions", json={"model": "toy", "stream": True} | fields)
    assert response.status_code == 200
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    return events(response)


def test_a_stream_is_events_and_then_done(toy: Frontend):
    *chunks, done = stream(toy, prompt="hello", max_tokens=4)
    assert done == "[DONE]"
    assert all(chunk["object"] == "text_completion" for chunk in chunks)
    assert all("usage" not in chunk for chunk in chunks)


@pytest.mark.parametrize("streamed", [False, True])
def test_a_stop_string_over_tokens_ends_the_request_and_is_not_leaked(serve: ServeToy, streamed: bool):
    toy = serve(FakeRing(step_s=0.005))
    reply = toy.openai.completions.create(
        model="toy", prompt="hello stop sign", max_tokens=200, stop=["p s", "never"], stream=streamed
    )
    pieces = [chunk.choices[0] for chunk in reply] if streamed else reply.choices
    assert "".join(piece.text for piece in pieces) == "hello sto"
    assert pieces[-1].finish_reason == "stop"
    wait_for(lambda: toy.ring.running == 0)
    assert (len(toy.ring.finished), toy.ring.aborted) == (1, [])


def test_a_choice_that_stops_early_leaves_the_engine_before_the_others_end(serve: ServeToy):
    toy = serve(FakeRing(step_s=0.01))
    prompts = ["hello stop sign", "fox"]
    reply = toy.openai.completions.create(model="toy", prompt=prompts, max_tokens=200, stop="stop", stream=True)
    next(chunk for chunk in reply if chunk.choices[0].finish_reason == "stop")
    wait_for(lambda: toy.ring.finished, seconds=0.5)
    assert toy.ring.running == 1
    reply.close()


@pytest.mark.parametrize(("stop", "text"), [("sigx", "hello sig"), ("hello signal", "hello sig")])
def test_text_held_back_for_a_stop_string_is_flushed_at_the_end(toy: Frontend, stop: str, text: str):
    tokens = toy.encode(text)
    *chunks, _ = stream(toy, prompt=tokens, max_tokens=len(tokens), stop=stop)
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == text
    assert chunks[-1]["choices"][0]["finish_reason"] == "length"


def test_half_a_character_at_the_end_becomes_a_replacement_character(toy: Frontend):
    first, *_ = toy.encode("🙂")
    *chunks, _ = stream(toy, prompt=[first], max_tokens=1)
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == "\ufffd"


def test_stop_strings_count_only_after_min_tokens(toy: Frontend):
    tokens = toy.encode("a.b")
    *chunks, _ = stream(toy, prompt=tokens, max_tokens=50, min_tokens=len(tokens) + 1, stop=".")
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == "a.ba"


@pytest.mark.parametrize("finish", [Finish.ERROR, Finish.ENGINE_GONE])
def test_a_failure_in_a_stream_is_an_error_event_and_then_done(serve: ServeToy, finish: Finish):
    toy = serve(FakeRing(fail_with=finish))
    *_, error, done = stream(toy, prompt="x")
    assert done == "[DONE]"
    assert error["error"]["type"] == "server_error"
    with pytest.raises(openai.APIError):
        list(toy.openai.completions.create(model="toy", prompt="x", stream=True))
    assert toy.ring.aborted == []


class AllAtOnce(FakeRing):
    """Sends the prompt's tokens and a failure in one batch."""

    def wait(self, timeout_s):
        events = super().wait(timeout_s)
        if events:
            for _ in range(events[0].prompt_tokens - 1):
                events += super().wait(0)
            self.fail_with = Finish.ERROR
            events += super().wait(0)
        return events


def lost(prompt: list[int], params: object) -> Iterator[int]:
    """The prompt's tokens, and then the ring cannot be read."""
    yield from prompt
    raise ValueError


@pytest.mark.parametrize("ring", [AllAtOnce, lambda: FakeRing(play=lost)], ids=["engine", "ring"])
def test_what_was_generated_before_a_failure_comes_before_its_event(serve: ServeToy, ring: Callable[[], FakeRing]):
    toy = serve(ring())
    half_a_character = toy.encode("hello sig") + toy.encode("🙂")[:1]
    *chunks, error, done = stream(toy, prompt=half_a_character, max_tokens=50, stop="signal", logprobs=0)
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == "hello sig\ufffd"
    assert sum(len(chunk["choices"][0]["logprobs"]["tokens"]) for chunk in chunks) == len(half_a_character)
    assert error["error"]["type"] == "server_error"
    assert done == "[DONE]"


@pytest.mark.parametrize(("finish", "status"), [(Finish.ERROR, 500), (Finish.ENGINE_GONE, 503), (Finish.ABORT, 500)])
def test_a_failure_before_the_headers_has_a_status(serve: ServeToy, finish: Finish, status: int):
    toy = serve(FakeRing(fail_with=finish))
    response = toy.http.post("/v1/completions", json={"model": "toy", "prompt": "x"})
    assert response.status_code == status
    assert response.json()["error"]["type"] == "server_error"


@pytest.mark.parametrize("streamed", [False, True])
def test_a_client_that_leaves_causes_one_abort_a_choice(serve: ServeToy, streamed: bool):
    toy = serve(FakeRing(held=True))
    body = {"model": "toy", "prompt": "x", "max_tokens": 200, "n": 2, "stream": streamed}
    with pytest.raises(httpx.ReadTimeout):
        toy.http.post("/v1/completions", json=body, timeout=0.3)
    wait_for(lambda: len(toy.ring.aborted) == 2)
    time.sleep(0.1)
    assert len(set(toy.ring.aborted)) == len(toy.ring.aborted) == 2
    assert toy.ring.running == 0


def test_a_client_that_leaves_in_the_middle_of_a_stream_causes_one_abort(serve: ServeToy):
    toy = serve(FakeRing(step_s=0.01))
    reply = toy.openai.completions.create(model="toy", prompt="hello", max_tokens=200, stream=True)
    next(reply)
    reply.close()
    wait_for(lambda: toy.ring.running == 0)
    assert len(toy.ring.aborted) == 1


def test_a_finished_request_is_not_aborted(toy: Frontend):
    toy.openai.completions.create(model="toy", prompt="hello", max_tokens=3)
    stream(toy, prompt="hello", max_tokens=3)
    assert toy.ring.aborted == []


def test_an_abort_that_finds_no_room_is_sent_later(serve: ServeToy):
    toy = serve(FakeRing(held=True))
    body = {"model": "toy", "prompt": "x", "stream": True}
    with toy.http.stream("POST", "/v1/completions", json=body):
        toy.ring.full = True
    time.sleep(0.1)
    assert toy.ring.aborted == []
    toy.ring.full = False
    wait_for(lambda: len(toy.ring.aborted) == 1)


def ask_and_do_not_read(toy: Frontend, **fields: object) -> socket.socket:
    """A connection whose client has sent a request for a long stream and takes little of it."""
    body = json.dumps({"model": "toy", "prompt": "a", "max_tokens": 250, "n": 8, "stream": True} | fields).encode()
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.connect(toy.address)
    head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
    client.sendall(head.encode() + b"\r\nConnection: close\r\n\r\n" + body)
    return client


def received(client: socket.socket) -> bytes:
    """What a client gets that reads to the end after all."""
    return b"".join(iter(lambda: client.recv(65536), b""))


def test_a_client_that_does_not_read_is_ended_alone(serve: ServeToy, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(dispatch, "INBOX_TOKENS", 32)
    toy = serve(FakeRing(step_s=0.001), send_buffer=4096)
    with ask_and_do_not_read(toy) as client:
        other = toy.openai.completions.create(model="toy", prompt="hello", max_tokens=200)
        assert other.usage.completion_tokens == 200
        wait_for(lambda: toy.ring.running == 0)
        assert len(toy.ring.aborted) == 8
        text = received(client)
    assert b"fell 32 tokens behind" in text
    assert text.rstrip().endswith(b"data: [DONE]\n\n\r\n0")


def test_a_client_that_never_reads_keeps_no_handler(serve: ServeToy, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(dispatch, "INBOX_TOKENS", 32)
    monkeypatch.setattr(stream_module, "SEND_S", 0.3)
    toy = serve(FakeRing(step_s=0.001), send_buffer=4096)
    with ask_and_do_not_read(toy) as client:
        wait_for(lambda: toy.ring.running == 0)
        time.sleep(0.5)
        text = received(client)
    assert text.startswith(b"HTTP/1.1 200")
    assert b"[DONE]" not in text


def test_the_kernel_gives_up_a_connection_that_nobody_reads(serve: ServeToy, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(server, "UNREAD_S", 1)
    toy = serve(FakeRing(step_s=0.03), send_buffer=4096)
    with ask_and_do_not_read(toy):
        wait_for(lambda: len(toy.ring.aborted) == 8)


def test_a_client_that_lags_gets_what_it_missed_in_one_piece(tmp_path: Path):
    async def pieces() -> list[list[Delta]]:
        deployment = load(write_bundle(tmp_path / "bundle"))
        dispatcher = Dispatcher(FakeRing(), deployment.plan.schedule)
        body = CompletionRequest.model_validate({"model": "toy", "prompt": "hello", "max_tokens": 100, "n": 2})
        async with Generation(dispatcher, deployment, await completion_job(body, deployment), 0.0) as generation:
            while dispatcher._routes:
                dispatcher._deliver(dispatcher._ring.wait(0))
            return [deltas async for deltas in generation.deltas()]

    [[*deltas]] = asyncio.run(pieces())
    tokenizer = load(tmp_path / "bundle").tokenizer
    text = tokenizer.decode((tokenizer.encode("hello") * 100)[:100])
    assert [(delta.choice, delta.text, delta.finish_reason) for delta in deltas] == [
        (0, text, "length"),
        (1, text, "length"),
    ]
