"""A completion is read from the server's events as they come, and timed."""

import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from dualpace.completion import CompletionError, complete

GAP = 0.1


def chunk(text: str) -> dict:
    return {"choices": [{"index": 0, "text": text, "finish_reason": None}], "usage": None}


class Server(HTTPServer):
    status = 200
    events: tuple[dict, ...] = ()
    body = b""
    seen: dict


class Handler(BaseHTTPRequestHandler):
    def do_POST(self):
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.seen = {"key": self.headers["Authorization"], "path": self.path} | request
        self.send_response(self.server.status)
        self.end_headers()
        self.wfile.write(self.server.body)
        for event in self.server.events:
            time.sleep(GAP)
            self.wfile.write(b": a comment\n\n" + f"data: {json.dumps(event)}\n\n".encode())
            self.wfile.flush()
        if self.server.status == 200:
            self.wfile.write(b"data: [DONE]\n\n")

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
    timing = complete(server.server_address, "secret", {"prompt": "x"}, pieces.append)
    assert pieces == ["Par", "is", "."]
    assert timing.tokens == 3
    assert timing.ttft == pytest.approx(GAP, abs=GAP / 2)
    assert timing.tpot == pytest.approx(GAP, abs=GAP / 2)
    assert server.seen["key"] == "Bearer secret"
    assert (server.seen["path"], server.seen["prompt"], server.seen["stream"]) == ("/v1/completions", "x", True)


def test_a_refusal_is_the_servers_sentence(server):
    server.status, server.body = 400, json.dumps({"error": {"message": "prompt is empty"}}).encode()
    with pytest.raises(CompletionError, match=r"^prompt is empty$"):
        complete(server.server_address, "", {"prompt": ""}, lambda text: None)


def test_a_failure_while_streaming_is_not_an_end(server):
    server.events = (chunk("Par"), {"error": {"message": "the engine is gone"}})
    with pytest.raises(CompletionError, match=r"^the engine is gone$"):
        complete(server.server_address, "", {"prompt": "x"}, lambda text: None)
