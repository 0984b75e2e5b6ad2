"""Bodies of requests: what is no JSON object, too long, never complete, or large."""

import json
import socket
import threading
import time
from types import SimpleNamespace

import pytest
from pydantic import ValidationError

from dualpace.appliance import bodies, limits
from dualpace.appliance.schema import Body, ChatRequest, CompletionRequest, DetokenizeRequest, TokenizeRequest

from .conftest import Frontend, ServeToy
from .test_refusals import COMPLETION, SURROGATE, post


@pytest.mark.parametrize(
    "body",
    ["", "{", '{"model": "toy", "prompt": "x",}', "[]", '"x"', "nul", "[" * 100_000, '{"a": ' * 5_000, b"\xff\xfe{}"],
)
def test_a_body_that_is_not_a_json_object_is_refused(toy: Frontend, body: str | bytes):
    response = toy.http.post("/v1/completions", content=body, headers={"Content-Type": "application/json"})
    assert response.status_code == 400
    assert set(response.json()["error"]) == {"message", "type", "param", "code"}


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b'{"model": "\xff"}', "UTF-8 at byte 11"),
        (b"[" * 100_000, "too deep"),
        (b'{"seed": 1%s}' % (b"0" * 5000), "digits"),
    ],
)
def test_a_body_that_cannot_be_read_is_told_why(toy: Frontend, body: bytes, why: str):
    for padding in (b"", b" " * 100_000):
        response = toy.http.post(
            "/v1/completions", content=body + padding, headers={"Content-Type": "application/json"}
        )
        assert response.status_code == 400
        assert why in response.json()["error"]["message"]


# Bodies of half a million parts: lists and objects wide and nested, texts, names.
WIDE = {
    "lists": b'{"model": "toy", "prompt": [%s[]]}' % (b"[]," * 500_000),
    "lists of one": b'{"model": "toy", "prompt": [%s[1]]}' % (b"[1]," * 500_000),
    "objects": b'{"model": "toy", "prompt": [%s{}]}' % (b"{}," * 500_000),
    "texts": b'{"model": "toy", "prompt": [%s""]}' % (b'"",' * 500_000),
    "names": b"{%s}" % b",".join(b'"%x":1' % index for index in range(500_000)),
    "a list in each": b'{"model": "toy", "prompt": %s}' % (b"[1," * 500_000 + b"1" + b"]" * 500_000),
    "an object in each": b'{"a":' * 500_000 + b"1" + b"}" * 500_000,
    "lists behind a text": b'{"user": "%s", "prompt": [%s[]]}' % (b"[" * 1000, b"[]," * 500_000),
    "no JSON": b"[" * 500_000,
}


@pytest.mark.parametrize("shape", WIDE)
def test_a_body_of_very_many_parts_is_refused_by_its_bytes(toy: Frontend, shape: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(bodies, "_DECODER", None)  # whatever reads JSON fails
    response = toy.http.post("/v1/completions", content=WIDE[shape], headers={"Content-Type": "application/json"})
    assert response.status_code == 400
    assert f"at most {bodies.MOST_PARTS}" in response.json()["error"]["message"]


@pytest.mark.parametrize("text", ["[" * 500_000, '"' * 500_000, '{"a": [' * 100_000, "\\" * 500_000, '"[' * 200_000])
def test_what_stands_in_a_text_is_no_part(toy: Frontend, text: str):
    assert post(toy, "/v1/completions", COMPLETION | {"user": text}).status_code == 200


@pytest.mark.parametrize("padding", ["", " " * 100_000])
@pytest.mark.parametrize(
    "body",
    [
        '{"model": "toy", "prompt": "x", "max_tokens": 1, "max_tokens": 2}',
        '{"model": "toy", "prompt": "x", "logit_bias": {"1": 1, "1": 2}}',
        r'{"model": "toy", "prompt": "x", "prom\u0070t": "y"}',
    ],
)
def test_a_name_that_an_object_has_twice_is_refused(toy: Frontend, body: str, padding: str):
    response = toy.http.post("/v1/completions", content=body + padding, headers={"Content-Type": "application/json"})
    assert response.status_code == 400
    assert "twice" in response.json()["error"]["message"]


@pytest.mark.parametrize(
    "body", [json.dumps(COMPLETION).encode("utf-16"), b"\xef\xbb\xbf" + json.dumps(COMPLETION).encode()]
)
def test_json_is_utf_8_without_a_mark(toy: Frontend, body: bytes):
    response = toy.http.post("/v1/completions", content=body, headers={"Content-Type": "application/json"})
    assert response.status_code == 400
    assert "not valid JSON" in response.json()["error"]["message"]


def many(value: object) -> list[object]:
    return [value] * 1000


@pytest.mark.parametrize(
    ("model", "fields"),
    [
        (ChatRequest, {"messages": many(1)}),
        (ChatRequest, {"messages": many({})}),
        (ChatRequest, {"messages": [{"role": "user", "content": many(1)}]}),
        (ChatRequest, {"tools": many(1), "functions": many(1), "modalities": many(1)}),
        (CompletionRequest, {"stop": many(1), "stop_token_ids": many("x")}),
        (CompletionRequest, {"prompt": [*many(1), "x"]}),
        (CompletionRequest, {"prompt": many({})}),
        (TokenizeRequest, {"messages": many({})}),
        (DetokenizeRequest, {"tokens": many("x")}),
    ],
)
def test_what_does_not_fit_a_thousand_times_is_not_found_a_thousand_times(model: type[Body], fields: dict[str, object]):
    base = {"messages": [{"role": "user", "content": "x"}]} if model is ChatRequest else {"prompt": "x"}
    with pytest.raises(ValidationError) as found:
        model.model_validate({"model": "toy"} | base | fields)
    assert found.value.error_count() < 10


def test_an_object_of_more_names_than_any_field_takes_is_refused_before_they_are_looked_at(toy: Frontend):
    names = {f"name{index}": 1 for index in range(bodies.MOST_NAMES + 1)}
    user = {"user": "x" * 100_000}
    for fields in (names, {"logit_bias": names}, {"stream_options": names}, {"prompt": [names]}):
        error = post(toy, "/v1/completions", COMPLETION | user | fields).json()["error"]
        assert f"at most {bodies.MOST_NAMES}" in error["message"]


@pytest.mark.parametrize("padding", ["x", "x" * 100_000])
def test_a_large_body_is_refused_as_a_small_one(toy: Frontend, padding: str):
    for fields, sentence in (
        ({"temperature": 3}, "'temperature' is not valid: input should be less than or equal to 2."),
        ({"foo": 3}, "Unrecognized request argument supplied: 'foo'."),
    ):
        response = post(toy, "/v1/completions", COMPLETION | {"user": padding} | fields)
        assert response.status_code == 400
        assert response.json()["error"]["message"] == sentence


def test_a_lone_surrogate_in_a_field_name_is_refused(toy: Frontend):
    assert post(toy, "/v1/completions", COMPLETION | {f"field{SURROGATE}": 1}).status_code == 400


def test_numbers_that_are_not_finite_are_refused(toy: Frontend):
    for number in ("NaN", "Infinity", "-Infinity", "1e999"):
        body = f'{{"model": "toy", "prompt": "x", "temperature": {number}}}'
        response = toy.http.post("/v1/completions", content=body, headers={"Content-Type": "application/json"})
        assert response.status_code == 400


@pytest.mark.parametrize("content_type", [None, "text/plain", "application/x-www-form-urlencoded", "json"])
def test_a_body_that_does_not_say_json_is_refused(toy: Frontend, content_type: str | None):
    headers = {} if content_type is None else {"Content-Type": content_type}
    response = toy.http.post("/v1/completions", content=json.dumps(COMPLETION), headers=headers)
    assert response.status_code == 415
    assert "application/json" in response.json()["error"]["message"]
    assert response.json()["error"]["code"] == "unsupported_media_type"


def test_a_charset_beside_the_content_type_is_fine(toy: Frontend):
    headers = {"Content-Type": "Application/JSON; charset=utf-8"}
    assert toy.http.post("/v1/completions", content=json.dumps(COMPLETION), headers=headers).status_code == 200


def test_a_compressed_body_is_refused(toy: Frontend):
    headers = {"Content-Type": "application/json", "Content-Encoding": "gzip"}
    response = toy.http.post("/v1/completions", content=b"\x1f\x8b", headers=headers)
    assert response.status_code == 400
    assert "Content-Encoding" in response.json()["error"]["message"]


@pytest.mark.parametrize("chunked", [False, True])
def test_a_body_over_the_limit_is_refused_before_it_is_parsed(serve: ServeToy, chunked: bool):
    toy = serve(max_body="1KiB")
    for size, status in ((900, 200), (2000, 413)):
        body = json.dumps({"model": "toy", "prompt": [3], "user": "x" * size}).encode()
        response = toy.http.post(
            "/v1/completions",
            content=iter([body[:500], body[500:]]) if chunked else body,
            headers={"Content-Type": "application/json"},
        )
        assert response.status_code == status
    assert "1024 bytes" in response.json()["error"]["message"]
    assert response.json()["error"]["code"] == "body_too_large"


def begin_a_body(toy: Frontend) -> socket.socket:
    """A connection whose client has sent a whole request where a longer one was announced."""
    body = json.dumps(COMPLETION).encode()
    client = socket.create_connection(toy.address)
    head = "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n\r\n"
    client.sendall(head.encode() + body)
    return client


def test_a_body_that_does_not_come_to_its_end_is_not_waited_for(serve: ServeToy, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(limits, "BODY_S", 0.2)
    toy = serve()
    with begin_a_body(toy) as client:
        answer = b"".join(iter(lambda: client.recv(65536), b""))
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert b"longer than 0.2 s" in answer


def test_a_body_whose_client_leaves_before_its_end_is_no_request(serve: ServeToy, monkeypatch: pytest.MonkeyPatch):
    parsed = []
    monkeypatch.setattr(limits, "_replay", lambda body, receive: parsed.append(body) or receive)
    toy = serve()
    begin_a_body(toy).close()
    time.sleep(0.2)
    assert toy.http.get("/health").status_code == 200
    assert parsed == []


def test_a_large_body_is_parsed_off_the_event_loop(toy: Frontend, monkeypatch: pytest.MonkeyPatch):
    threads = []

    def decode(text: str) -> object:
        threads.append(threading.current_thread().name)
        return json.loads(text)

    monkeypatch.setattr(bodies, "_DECODER", SimpleNamespace(decode=decode))
    for size in (10, 100_000):
        assert post(toy, "/v1/completions", COMPLETION | {"user": "x" * size}).status_code == 200
    small, large = threads
    assert large.startswith("aside")
    assert not small.startswith("aside")
