"""Streams as servers send them, in whatever pieces they come."""

import json

import pytest

from dualpace.bench.answer import Answer
from dualpace.bench.client import Client, Connection

DONE = "data: [DONE]"


def data(**event: object) -> str:
    return f"data: {json.dumps(event)}"


def delta(finish: str | None = None, **fields: object) -> str:
    return data(choices=[{"index": 0, "delta": fields, "finish_reason": finish}])


def read(*lines: str) -> Answer:
    answer = Answer(0.0, 3)
    for now, line in enumerate(lines, 1):
        answer.line(line.encode(), float(now))
    answer.close(float(len(lines)))
    return answer


def test_the_role_of_a_chat_is_no_token_and_reasoning_is():
    found = read(
        delta(role="assistant", content=""), delta(reasoning_content="hm"), delta(content="yes"), delta("stop"), DONE
    )
    assert found.error is None
    assert list(found.arrivals) == [2.0, 3.0]
    assert (found.tokens, found.end) == (2, 5.0)


def test_the_servers_count_of_tokens_counts():
    usage = {"prompt_tokens": 7, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 4}}
    found = read(data(choices=[{"text": "ab", "finish_reason": "length"}]), data(choices=[], usage=usage), DONE)
    assert (found.tokens, found.prompt, found.cached, found.error) == (3, 7, 4, None)
    plain = usage | {"prompt_tokens_details": None}
    assert read(data(choices=[{"text": "ab", "finish_reason": "stop"}], usage=plain), DONE).cached == 0


@pytest.mark.parametrize(
    ("lines", "error"),
    [
        ((delta("stop", content="a"),), "stream: broken off"),
        ((delta(content="a"), DONE), "stream: ended with no finish reason"),
        ((delta("error", content="a"), DONE), "stream: ended with error"),
        ((delta("stop"), DONE), "stream: no text"),
        ((delta(content="a"), data(error={"message": "x", "type": "server_error"}), DONE), "stream: server_error"),
        ((delta(content="a"), data(error="out of memory"), DONE), "stream: out of memory"),
        (("data: [1]", DONE), "stream: not an event of the API"),
        (("data: {}", DONE), "stream: not an event of the API"),
        ((data(choices=[{}], usage={}), delta("stop", content="a"), DONE), None),
        ((delta(["stop"], content="a"), DONE), "stream: ended with ['stop']"),
        (("data: " + "[" * 100_000, DONE), "stream: not an event of the API"),
    ],
)
def test_what_is_a_success_and_what_is_not(lines, error):
    assert read(": a comment", "event: message", "", *lines).error == error


@pytest.mark.parametrize("tokens", [None, "3", -1, 3.0, True, [3], 10**400, float("nan")])
@pytest.mark.parametrize("field", ["completion_tokens", "prompt_tokens"])
def test_a_count_that_is_none_is_no_answer(field, tokens):
    usage = {"prompt_tokens": 7, "completion_tokens": 3} | {field: tokens}
    found = read(data(choices=[{"text": "ab", "finish_reason": "stop"}], usage=usage), DONE)
    assert found.error == "stream: not an event of the API"


class Wire:
    """A transport that keeps what is written."""

    def __init__(self) -> None:
        self.sent = b""
        self.closed = False

    def write(self, data: bytes) -> None:
        self.sent += data

    def close(self) -> None:
        self.closed = True

    abort = close


def answered(pieces: list[bytes], closes: bool = False) -> Answer:
    """The answer that a connection makes of these reads."""
    ended: list[Answer] = []
    client = Client("http://host:1/v1/", "/completions", "a key", ended.append)
    connection, wire, answer = Connection(client), Wire(), Answer(0.0, 2)
    client.active[answer] = connection
    connection.connection_made(wire)
    connection.ask(b"request", answer)
    for piece in pieces:
        connection.parse(piece, 1.0)
    if closes:
        connection.connection_lost(None)
    assert ended == [answer]
    return answer


BODY = "\r\n\r\n".join((data(choices=[{"text": "é 😀", "finish_reason": None}]), ": ping",
                        data(choices=[{"text": "b", "finish_reason": "length"}]), DONE, "")).encode()  # fmt: skip
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"


def test_a_stream_may_be_cut_anywhere():
    whole = HEAD + b"Transfer-Encoding: chunked\r\n\r\n%x\r\n%b\r\n0\r\n\r\n" % (len(BODY), BODY)
    for cut in range(1, len(whole)):
        found = answered([whole[:cut], whole[cut:]])
        assert (found.error, len(found.arrivals)) == (None, 2)
    assert len(answered([bytes([byte]) for byte in whole]).arrivals) == 2


def test_a_stream_may_end_by_closing():
    assert answered([HEAD + b"\r\n" + BODY], closes=True).error is None
    assert answered([HEAD + b"\r\n" + BODY[:-20]], closes=True).error == "stream: broken off"


def test_an_answer_that_is_no_stream_or_no_http():
    page = b"HTTP/1.1 502 Bad Gateway\r\nContent-Type: text/html\r\nContent-Length: 4\r\n\r\noops"
    assert answered([page]).error == "HTTP 502: no error object"
    body = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"
    assert answered([body]).error == "stream: not an event stream"
    assert answered([b"nonsense\r\n\r\n"], closes=True).error == "connection: not HTTP"
    assert answered([], closes=True).error == "connection: closed without an answer"
    switching = b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\nx"
    assert answered([switching], closes=True).error == "connection: not HTTP"


def test_an_answer_may_be_announced():
    whole = HEAD + b"Content-Length: %d\r\n\r\n" % len(BODY) + BODY
    for interim in (b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n"):
        assert answered([interim + whole]).error is None
        assert answered([interim, whole]).error is None


def test_what_follows_a_whole_answer_is_not_part_of_it():
    assert answered([HEAD + b"Content-Length: %d\r\n\r\n" % len(BODY) + BODY + b"nonsense\r\n\r\n"]).error is None


def test_a_request_has_the_servers_path_and_the_key():
    client = Client("http://host:81/base/v1/", "/completions", "a key", lambda answer: None)
    wire = Wire()
    connection = Connection(client)
    connection.connection_made(wire)
    client.free(connection)
    client.send(b"{}", Answer(0.0, 1))
    head, body = wire.sent.split(b"\r\n\r\n")
    assert head.split(b"\r\n")[0] == b"POST /base/v1/completions HTTP/1.1"
    assert b"Host: host:81" in head
    assert b"Authorization: Bearer a key" in head
    assert b"Content-Length: 2" in head
    assert body == b"{}"
