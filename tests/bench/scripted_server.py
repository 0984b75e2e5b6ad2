"""A server whose latencies are known: it waits as it is told, and writes down when each answer went out.

    python -m tests.bench.scripted_server [--port PORT] [CERTIFICATE KEY]

Prints its port, any by default; with PEM files it speaks HTTPS. The `script` of a request is an object: `ttft` and
`itl` in seconds, either of them a number or a list that requests take in turn; `tokens` (by default those asked for);
`burst`, tokens a write; and `end`, one of `ENDS`. GET /log has a list for each request: its arrival and then each write
of text, in seconds of the system's monotonic clock, which the client's times are of too.
"""

import argparse
import asyncio
import itertools
import json
import ssl
import sys
import time
from collections import defaultdict
from functools import cache
from http import HTTPStatus

import httptools
import uvloop

ENDS = ("done", "error", "cut", "refuse", "silent", "no-done", "abort", "garbage")
EVENTS = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\nTransfer-Encoding: chunked\r\n\r\n"


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def event(value: object) -> bytes:
    return b"data: %b\n\n" % json.dumps(value).encode()


def piece(text: str, finish: str | None = None) -> dict:
    return {"id": "cmpl-0", "choices": [{"index": 0, "text": text, "finish_reason": finish}], "usage": None}


@cache
def text(tokens: int, finish: str | None) -> bytes:
    return chunk(event(piece(" a" * tokens, finish)))


class Server:
    def __init__(self) -> None:
        self.log: list[list[float]] = []
        self.turns: dict[str, itertools.count] = defaultdict(itertools.count)

    def next_of(self, script: dict, name: str) -> float:
        value = script.get(name, 0.0)
        return value[next(self.turns[name]) % len(value)] if isinstance(value, list) else value


class Connection(asyncio.Protocol):
    def __init__(self, server: Server) -> None:
        self.server = server
        self.parser = httptools.HttpRequestParser(self)
        self.task: asyncio.TimerHandle | None = None

    def connection_made(self, transport) -> None:
        self.transport = transport

    def connection_lost(self, error) -> None:
        if self.task:
            self.task.cancel()

    def data_received(self, data: bytes) -> None:
        self.now = time.monotonic()
        self.parser.feed_data(data)

    def on_message_begin(self) -> None:
        self.body = bytearray()

    def on_url(self, url: bytes) -> None:
        self.url = url

    def on_body(self, body: bytes) -> None:
        self.body += body

    def on_message_complete(self) -> None:
        if self.url == b"/log":
            self.whole(200, self.server.log)
            self.server.log = []
        elif self.url == b"/health":
            self.whole(200, {})
        elif self.url == b"/v1/models":
            self.whole(200, {"data": [{"id": "scripted", "max_model_len": 4096}]})
        else:
            self.answer(json.loads(self.body))

    def whole(self, status: int, value: object) -> None:
        body = json.dumps(value).encode()
        head = f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\nContent-Type: application/json\r\n"
        self.transport.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)

    def answer(self, request: dict) -> None:
        self.request = request
        self.script = request.get("script", {})
        self.end = self.script.get("end", "done")
        self.tokens = self.script.get("tokens", request["max_tokens"])
        if self.end == "refuse":
            self.whole(429, {"error": {"message": "The queue is full.", "code": "queue_full"}})
            return
        self.stamps = [self.now]
        self.server.log.append(self.stamps)
        self.itl = self.server.next_of(self.script, "itl")
        self.left = self.tokens
        if self.end != "silent":
            self.at(self.now + self.server.next_of(self.script, "ttft"))

    def at(self, due: float) -> None:
        self.due = due
        loop = asyncio.get_running_loop()
        self.task = loop.call_later(max(due - time.monotonic(), 0), self.write)

    def write(self) -> None:
        if self.left == self.tokens:
            self.transport.write(EVENTS)
        count = min(self.script.get("burst", 1), self.left)
        self.left -= count
        self.transport.write(text(count, None if self.left else "abort" if self.end == "abort" else "length"))
        self.stamps.append(time.monotonic())
        if self.left:
            self.at(self.due + self.itl * count)
        else:
            self.finish()

    def finish(self) -> None:
        if self.end == "cut":
            self.transport.close()
            return
        if self.end == "error":
            self.transport.write(chunk(event({"error": {"message": "gone", "code": "generation_failed"}})))
        elif self.end == "garbage":
            self.transport.write(chunk(b"data: {no json\n\n"))
        usage = {"prompt_tokens": len(self.request.get("prompt", "")), "completion_tokens": self.tokens}
        if self.end in ("done", "abort"):
            self.transport.write(chunk(event({"id": "cmpl-0", "choices": [], "usage": usage})))
        self.transport.write((b"" if self.end == "no-done" else chunk(b"data: [DONE]\n\n")) + b"0\r\n\r\n")


async def serve(port: int, files: list[str]) -> None:
    server = Server()
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH) if files else None
    if context:
        context.load_cert_chain(*files)
    listener = await asyncio.get_running_loop().create_server(
        lambda: Connection(server), "127.0.0.1", port, backlog=1024, ssl=context
    )
    sys.stdout.write(f"{listener.sockets[0].getsockname()[1]}\n")
    sys.stdout.flush()
    await asyncio.Event().wait()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("files", nargs="*")
    arguments = parser.parse_args()
    uvloop.run(serve(arguments.port, arguments.files))
