"""What comes before a request is known, or in its place: raw bytes on connections."""

import json
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from dualpace.appliance import limits, protocol

from .conftest import Frontend, ServeToy, wait_for
from .fake_ring import FakeRing

GET = b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"
BODY = json.dumps({"model": "toy", "prompt": "hello", "max_tokens": 3}).encode()


def post(body: bytes = BODY, *fields: str) -> bytes:
    lines = ["POST /v1/completions HTTP/1.1", "Host: x", "Content-Type: application/json", *fields]
    return "\r\n".join([*lines, f"Content-Length: {len(body)}", "", ""]).encode() + body


@contextmanager
def connected(toy: Frontend) -> Iterator[socket.socket]:
    with socket.create_connection(toy.address, timeout=10) as client:
        yield client


def rest(client: socket.socket) -> bytes:
    """What comes until the server closes."""
    return b"".join(iter(lambda: client.recv(65536), b""))


def sent(toy: Frontend, *pieces: bytes) -> bytes:
    """All that is answered to `pieces`, until the server closes."""
    with connected(toy) as client:
        for piece in pieces:
            client.sendall(piece)
        return rest(client)


def refusal(answer: bytes) -> tuple[int, str]:
    """Status and message of an answer that is the API's error object and the last on its connection."""
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b"\r\nconnection: close" in head.lower()
    error = json.loads(body)["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["code"]
    return int(head.split()[1]), error["message"]


@pytest.mark.parametrize(
    "nonsense",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",  # a TLS client
        b"nonsense\r\n\r\n",
        b"GET /health HTTP/9.9\r\n\r\n",
        b"GET \xff HTTP/1.1\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nContent-Length: many\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"GET /health HTTP/1.1\r\nName\x00: value\r\n\r\n",
    ],
)
def test_what_is_not_http_is_refused_with_an_error_object(toy: Frontend, nonsense: bytes):
    status, message = refusal(sent(toy, nonsense))
    assert status == 400
    assert "not valid HTTP" in message


HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
SIZED = b"Content-Length: %d\r\n\r\n" % len(BODY) + BODY
CHUNKED = b"\r\n%x\r\n%s\r\n0\r\n\r\n" % (len(BODY), BODY)


@pytest.mark.parametrize(
    ("request_", "status", "why"),
    [
        (HEAD.replace(b"Host: x\r\n", b"") + SIZED, 400, "host is missing"),
        (HEAD + b"Host: x\r\n" + SIZED, 400, "host stands more than once"),
        (HEAD.replace(b"Host: x", b"Host: a b") + SIZED, 400, "holds no host"),
        (HEAD.replace(b"Host: x", b"Host: x@y") + SIZED, 400, "holds no host"),
        (HEAD + b"Content-Type: text/plain\r\n" + SIZED, 400, "content-type stands more than once"),
        (HEAD + b"Authorization: a\r\nauthorization: b\r\n" + SIZED, 400, "authorization stands more than once"),
        (HEAD.replace(b"completions", b"completions#a") + SIZED, 400, "fragment"),
        (HEAD + b"Transfer-Encoding: gzip, chunked\r\n" + CHUNKED, 400, "coding"),
        (HEAD + b"Transfer-Encoding: identity\r\n" + CHUNKED, 400, "coding"),
        (HEAD.replace(b"1.1", b"1.0") + b"Transfer-Encoding: chunked\r\n" + CHUNKED, 400, "HTTP/1.0"),
        (HEAD.replace(b"1.1", b"2.0") + SIZED, 400, "HTTP/1.0"),
        (HEAD.replace(b"1.1", b"0.9") + SIZED, 400, "HTTP/1.0"),
        (b"GET /health\r\n\r\n", 400, "HTTP/1.0"),
        (HEAD + b"Expect: 200-ok\r\n" + SIZED, 417, "100-continue"),
    ],
)
def test_what_a_head_may_not_have_is_refused(toy: Frontend, request_: bytes, status: int, why: str):
    found, message = refusal(sent(toy, request_))
    assert found == status
    assert why in message
    assert not toy.ring.submitted


@pytest.mark.parametrize("host", [b"", b"x:8000", b"[::1]:80", b"a-b.example", b"127.0.0.1"])
def test_a_host_is_a_name_or_an_address_and_maybe_a_port(toy: Frontend, host: bytes):
    answer = sent(toy, b"GET /health HTTP/1.1\r\nConnection: close\r\nHost: %s\r\n\r\n" % host)
    assert answer.startswith(b"HTTP/1.1 200")


def asked(**fields: object) -> bytes:
    return json.dumps(json.loads(BODY) | fields).encode()


def old(body: bytes) -> bytes:
    return post(body).replace(b"HTTP/1.1", b"HTTP/1.0")


def test_a_client_of_http_1_0_gets_a_stream_that_ends_with_its_connection(toy: Frontend):
    head, _, stream = sent(toy, old(asked(stream=True))).partition(b"\r\n\r\n")
    assert b"transfer-encoding" not in head.lower()
    assert b"connection: close" in head.lower()
    *events, rest = stream.split(b"\n\n")
    assert (events[-1], rest) == (b"data: [DONE]", b"")
    texts = [json.loads(event.removeprefix(b"data: "))["choices"][0]["text"] for event in events[:-1]]
    whole_head, _, whole = sent(toy, old(BODY)).partition(b"\r\n\r\n")
    assert b"content-length: %d" % len(whole) in whole_head.lower()
    assert "".join(texts) == json.loads(whole)["choices"][0]["text"]


def test_a_client_of_http_1_0_is_not_told_to_continue(toy: Frontend):
    assert sent(toy, old(BODY).replace(b"Host: x", b"Expect: 100-continue")).startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize("streamed", [False, True])
def test_a_client_that_sends_no_more_gets_its_answer(serve: ServeToy, streamed: bool):
    toy = serve(FakeRing(held=True))
    with connected(toy) as client:
        client.sendall(post(asked(stream=streamed)))
        wait_for(lambda: toy.ring.running)
        client.shutdown(socket.SHUT_WR)
        time.sleep(0.1)
        toy.ring.hold(False)
        answer = rest(client)
    assert b"length" in answer.removeprefix(b"HTTP/1.1 100 Continue\r\n\r\n").partition(b"\r\n\r\n")[2]
    assert not toy.ring.aborted


def test_all_that_a_client_has_asked_for_before_it_sends_no_more_is_answered(toy: Frontend):
    with connected(toy) as client:
        client.sendall(post() + GET + post())
        client.shutdown(socket.SHUT_WR)
        answer = rest(client)
    assert answer.count(b"HTTP/1.1 200") == 3


@pytest.mark.parametrize("behind", [b"", GET], ids=["alone", "with a request behind"])
@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize(("half_first", "version"), [(False, b"1.1"), (True, b"1.1"), (False, b"1.0")])
def test_a_client_that_leaves_before_its_answer_causes_an_abort(
    serve: ServeToy, half_first: bool, version: bytes, streamed: bool, behind: bytes
):
    toy = serve(FakeRing(held=True))
    with connected(toy) as client:
        client.sendall((post(asked(stream=streamed)) + behind).replace(b"1.1", version))
        wait_for(lambda: toy.ring.running)
        if half_first:
            client.shutdown(socket.SHUT_WR)
            time.sleep(0.1)
            assert not toy.ring.aborted
    wait_for(lambda: toy.ring.aborted)


def test_who_waits_to_be_told_to_send_a_body_is_refused_instead(serve: ServeToy):
    toy = serve(max_body="1KiB")
    head = post().partition(b"Content-Length")[0] + b"Expect: 100-continue\r\nContent-Length: 2000\r\n\r\n"
    started = time.monotonic()
    assert refusal(sent(toy, head))[0] == 413
    assert time.monotonic() - started < limits.DISCARD_S
    with connected(toy) as client:
        client.sendall(head.replace(b"2000", b"%d" % len(BODY)))
        assert client.recv(65536) == b"HTTP/1.1 100 Continue\r\n\r\n"
        client.sendall(BODY)
        assert client.recv(65536).startswith(b"HTTP/1.1 200")


def test_a_body_that_breaks_off_into_nonsense_is_refused_and_is_no_request(toy: Frontend):
    submitted = len(toy.ring.submitted)
    head = post().partition(b"Content-Length")[0] + b"Transfer-Encoding: chunked\r\n\r\n"
    chunk = b"%x\r\n%s\r\n" % (len(BODY), BODY)
    assert refusal(sent(toy, head, chunk, b"nonsense\r\n"))[0] == 400
    assert len(toy.ring.submitted) == submitted


@pytest.mark.parametrize(
    "pieces",
    [
        [b"GET /health HTTP/1.1\r\nLong: ", b"x" * 100_000],
        [b"GET /health HTTP/1.1\r\n", b"Name: value\r\n" * 10_000],
        [b"GET /", b"x" * 100_000],
        [
            post().partition(b"Content-Length")[0] + b"Transfer-Encoding: chunked\r\n\r\n",
            b"%x\r\n%s\r\n0\r\nTrailer: " % (len(BODY), BODY),
            b"x" * 100_000,
        ],
    ],
    ids=["header", "headers", "target", "trailer"],
)
def test_a_head_or_trailer_without_end_is_refused(toy: Frontend, pieces: list[bytes]):
    status, message = refusal(sent(toy, *pieces))
    assert status == 431
    assert "65536 bytes" in message


def test_a_body_may_be_larger_than_a_head(toy: Frontend):
    body = json.dumps({"model": "toy", "prompt": [3], "max_tokens": 1, "user": "x" * 300_000}).encode()
    with connected(toy) as client:
        client.sendall(post(body))
        assert client.recv(12) == b"HTTP/1.1 200"


@pytest.mark.parametrize(("before", "begun"), [(b"", b""), (b"", b"G"), (GET, b"G"), (b"", GET[:-2]), (GET, GET[:-2])])
def test_a_head_that_does_not_come_is_not_waited_for(
    serve: ServeToy, begun: bytes, before: bytes, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(protocol, "HEAD_S", 1.0)
    toy = serve()
    started = time.monotonic()
    answer = sent(toy, before, begun)
    assert time.monotonic() - started < 9
    if before:
        first, _, answer = answer.partition(b'{"status":"ok"')
        assert first.startswith(b"HTTP/1.1 200")
        answer = answer[answer.index(b"HTTP/1.1") :]
    if begun:
        status, message = refusal(answer)
        assert status == 408
        assert "1 s" in message
    else:
        assert answer == b""


def test_the_head_of_a_request_behind_one_that_is_answered_has_its_time(serve: ServeToy, monkeypatch):
    monkeypatch.setattr(protocol, "HEAD_S", 0.2)
    toy = serve(FakeRing(held=True))
    with connected(toy) as client:
        client.sendall(post() + GET[:10])
        time.sleep(0.5)
        client.sendall(GET[10:])
        toy.ring.hold(False)
        answer = b""
        while b'"status":"ok"' not in answer:
            answer += client.recv(65536)
    assert answer.count(b"HTTP/1.1 200") == 2


@pytest.mark.parametrize("nonsense", [b"nonsense\r\n\r\n", post().replace(b"Content-Length:", b"Transfer-Encoding:")])
def test_nonsense_behind_a_request_takes_nothing_from_its_answer(serve: ServeToy, nonsense: bytes):
    toy = serve(FakeRing(held=True))
    with connected(toy) as client:
        client.sendall(post() + nonsense)
        wait_for(lambda: toy.ring.running)
        toy.ring.hold(False)
        answer = rest(client)
    assert answer.startswith(b"HTTP/1.1 200")
    assert json.loads(answer[answer.index(b"{") :])["choices"][0]["finish_reason"] == "length"


def test_requests_on_one_connection_are_answered_in_order(toy: Frontend):
    with connected(toy) as client:
        client.sendall(GET + post() + GET.replace(b"health", b"v1/models"))
        answer = b""
        while b"max_model_len" not in answer:
            answer += client.recv(65536)
    places = [answer.index(word) for word in (b'"status":"ok"', b"text_completion", b"max_model_len")]
    assert places == sorted(places)


def test_another_protocol_is_not_switched_to(toy: Frontend):
    upgrade = GET.replace(b"\r\n\r\n", b"\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
    answer = sent(toy, upgrade)
    assert answer.startswith(b"HTTP/1.1 200")
    assert b"connection: close" in answer


def test_a_body_that_nobody_asked_for_ends_the_connection(toy: Frontend):
    answer = sent(toy, GET.replace(b"\r\n\r\n", b"\r\nContent-Length: 1000000000\r\n\r\n"))
    assert answer.startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize("status", [401, 413, 415])
def test_a_client_that_sends_all_before_it_reads_learns_why_it_is_refused(serve: ServeToy, tmp_path, status: int):
    keys = tmp_path / "keys"
    keys.write_text("key\n")
    toy = serve(api_key_file=str(keys), max_body="4MiB")
    sizes = {413: 20 << 20}
    request = post(b"x" * sizes.get(status, 3 << 20), "Authorization: Bearer " + ("key" if status != 401 else "no"))
    if status == 415:
        request = request.replace(b"application/json", b"text/plain")
    with connected(toy) as client:
        client.sendall(request + GET)
        answer = client.recv(65536)
        assert answer.startswith(b"HTTP/1.1 %d" % status)
        while b'"status":"ok"' not in answer:  # on the same connection
            answer += client.recv(65536)


def test_a_client_that_goes_on_sending_what_is_refused_is_cut_off(serve: ServeToy, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(limits, "DISCARD_S", 0.3)
    toy = serve(max_body="1KiB")
    head = post().partition(b"Content-Length")[0] + b"Content-Length: 1000000000\r\n\r\n"
    assert refusal(sent(toy, head, b"x" * 100)) == (
        413,
        "The request body is larger than 1024 bytes, the limit of this server.",
    )


def test_no_more_requests_than_a_frontend_holds_are_under_way_and_health_answers(
    serve: ServeToy, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(limits, "REQUESTS", 1)
    toy = serve(FakeRing(held=True))
    with connected(toy) as client:
        client.sendall(post())
        wait_for(lambda: toy.ring.running)
        refused = toy.http.get("/v1/models")
        assert refused.status_code == 503
        assert "more than 1 requests" in refused.json()["error"]["message"]
        assert "retry-after" in refused.headers
        assert toy.http.get("/health").status_code == 200
        toy.ring.hold(False)
        assert client.recv(12) == b"HTTP/1.1 200"
    wait_for(lambda: toy.http.get("/v1/models").status_code == 200)
