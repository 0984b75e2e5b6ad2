"""A completion is read from the server's events as they come, and timed."""

import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import nullcontext
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, HTTPServer
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from dualpace import completion
from dualpace.cli import app
from dualpace.completion import CompletionError, complete
from tests.plans import example

GAP = 0.1


def chunk(text: str) -> dict:
    return {"choices": [{"index": 0, "text": text, "finish_reason": None}], "usage": None}


class Server(HTTPServer):
    status = 200
    end = b"data: [DONE]\n\n"
    events: tuple[dict, ...] = ()
    headers: tuple[tuple[str, str], ...] = ()
    body = b""
    seen: dict


class Handler(BaseHTTPRequestHandler):
    def do_POST(self):
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.seen = {"key": self.headers["Authorization"], "path": self.path} | request
        self.send_response(self.server.status)
        for header in self.server.headers:
            self.send_header(*header)
        self.end_headers()
        self.wfile.write(self.server.body)
        for event in self.server.events:
            time.sleep(GAP)
            self.wfile.write(b": a comment\n\n" + f"data: {json.dumps(event)}\n\n".encode())
            self.wfile.flush()
        if self.server.status == 200:
            self.wfile.write(self.server.end)

    def log_message(self, *_):
        pass


@pytest.fixture
def server() -> Iterator[Server]:
    with Server(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def test_text_is_handed_on_as_it_comes_and_timed(server):
    server.events = (chunk("Par"), chunk("is"), chunk("."), {"choices": [], "usage": {"completion_tokens": 3}})
    pieces = []
    timing = complete(HTTPConnection(*server.server_address), "secret", {"prompt": "x"}, pieces.append)
    assert pieces == ["Par", "is", "."]
    assert timing.tokens == 3
    assert timing.ttft == pytest.approx(GAP, abs=GAP / 2)
    assert timing.tpot == pytest.approx(GAP, abs=GAP / 2)
    assert server.seen["key"] == "Bearer secret"
    assert (server.seen["path"], server.seen["prompt"], server.seen["stream"]) == ("/v1/completions", "x", True)


def test_a_refusal_is_the_servers_sentence(server):
    server.status, server.body = 400, json.dumps({"error": {"message": "prompt is empty"}}).encode()
    with pytest.raises(CompletionError, match=r"^prompt is empty$"):
        complete(HTTPConnection(*server.server_address), "", {"prompt": ""}, lambda text: None)


def test_a_failure_while_streaming_is_not_an_end(server):
    server.events = (chunk("Par"), {"error": {"message": "the engine is gone"}})
    with pytest.raises(CompletionError, match=r"^the engine is gone$"):
        complete(HTTPConnection(*server.server_address), "", {"prompt": "x"}, lambda text: None)


@pytest.mark.parametrize(("end", "status"), [(b"data: [DONE]\n\n", 0), (b"", 2)], ids=["whole", "cut"])
def test_generate_asks_with_the_files_first_key_and_fails_when_cut(server, end, status, monkeypatch, tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("\n  the-first-key \nanother\n")
    plan = example("quickstart")
    plan = plan.model_copy(update={"serving": plan.serving.model_copy(update={"api_key_file": str(keys)})})
    monkeypatch.setattr(
        "dualpace.cli.serve.served", lambda source, store, refuse: (tmp_path, SimpleNamespace(plan=plan))
    )
    started = SimpleNamespace(start=lambda say: None, connection=lambda: HTTPConnection(*server.server_address))
    monkeypatch.setattr("dualpace.preflight.check", lambda *_, **__: None)
    monkeypatch.setattr("dualpace.launch.Appliance", lambda *_, **__: nullcontext(started))
    monkeypatch.setattr("dualpace.launch.end_on_signals", lambda: None)
    server.events, server.end = (chunk("Par"),), end
    ended = CliRunner().invoke(app, ["generate", str(tmp_path), "--prompt", "x"])
    assert (ended.exit_code, ended.stdout.strip()) == (status, "xPar")
    assert server.seen["key"] == "Bearer the-first-key"


@pytest.mark.parametrize(
    ("headers", "end", "message"),
    [
        ((), b"", "broke off"),
        ((), b"data: [DO", "no event"),
        ((), b"data: {\n\n", "no event"),
        ((), b"data: []\n\n", "no event"),
        ((), b'data: "error"\n\n', "no event"),
        ((("Content-Length", "100000"),), b"", "broke off"),
        ((("Transfer-Encoding", "chunked"),), b"", "broke off"),
    ],
)
def test_an_answer_that_is_cut_is_no_completion(server, headers, end, message):
    server.events, server.headers, server.end = (chunk("Par"),), headers, end
    with pytest.raises(CompletionError, match=message):
        complete(HTTPConnection(*server.server_address), "", {"prompt": "x"}, lambda text: None)


def test_a_refusal_that_is_not_json_is_told_by_its_status(server):
    server.status, server.body = 502, b"<html>Bad Gateway</html>"
    with pytest.raises(CompletionError, match=r"^the server answered 502 Bad Gateway$"):
        complete(HTTPConnection(*server.server_address), "", {"prompt": "x"}, lambda text: None)


def test_a_server_that_is_not_there_or_says_nothing_is_given_up(monkeypatch):
    monkeypatch.setattr(completion, "SILENCE_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = silent.getsockname()
        with pytest.raises(CompletionError, match=r"silent for 0\.2 s"):
            complete(HTTPConnection(*address), "", {"prompt": "x"}, lambda text: None)
    with pytest.raises(CompletionError, match="Connection refused"):
        complete(HTTPConnection(*address), "", {"prompt": "x"}, lambda text: None)


def test_what_the_writer_raises_is_not_the_servers_failure(server):
    def closed(text):
        raise BrokenPipeError

    server.events = (chunk("Par"),)
    with pytest.raises(BrokenPipeError):
        complete(HTTPConnection(*server.server_address), "", {"prompt": "x"}, closed)


def test_what_does_not_speak_http_is_a_failure_of_the_connection():
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer():
            peer, _ = listener.accept()
            with peer:
                peer.recv(65536)
                peer.sendall(b"nonsense\r\n\r\n")

        thread = threading.Thread(target=answer)
        thread.start()
        with pytest.raises(CompletionError, match="connection to the server failed: nonsense"):
            complete(HTTPConnection(*listener.getsockname()), "", {"prompt": "x"}, lambda text: None)
        thread.join()
