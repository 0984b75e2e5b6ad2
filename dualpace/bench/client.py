"""Connections to a server over HTTP/1.1, kept and used again, each with at most one answer streaming in."""

import asyncio
import http
import json
import time
from collections import deque
from collections.abc import Callable
from typing import cast
from urllib.parse import urlsplit

import httptools

from dualpace.bench.answer import Answer, kind_of
from dualpace.bench.server import encryption

EVENTS = b"text/event-stream"
MAX_REFUSAL = 64 << 10
# Reads parsed in a row, in well under a millisecond, before the clock is looked at for new ones.
SLICE = 32

Ended = Callable[[Answer], None]


class Client:
    """Sends requests to one path of one server and hands each answer to `ended`, whatever has become of it."""

    def __init__(self, url: str, path: str, key: str, ended: Ended, certificate: str | None = None) -> None:
        """`url` is the server's, with or without /v1; `path` what follows /v1; `key` the API key, or "".

        `certificate` as Load has it.
        """
        parts = urlsplit(url)
        self._host = parts.hostname or ""
        self._tls = encryption(certificate) if parts.scheme == "https" else None
        self._port = parts.port or (443 if self._tls else 80)
        self._ended = ended
        base = parts.path.rstrip("/").removesuffix("/v1")
        bearer = f"Authorization: Bearer {key}\r\n" if key else ""
        self._head = (
            f"POST {base}/v1{path} HTTP/1.1\r\nHost: {parts.netloc.rpartition('@')[2]}\r\n{bearer}"
            "Content-Type: application/json\r\nAccept: text/event-stream\r\nContent-Length: "
        ).encode()
        self._idle: list[Connection] = []
        self._opening: set[asyncio.Task[None]] = set()
        self.active: dict[Answer, Connection | None] = {}
        self._unparsed: deque[tuple[Connection, bytes, float]] = deque()

    def send(self, body: bytes, answer: Answer) -> None:
        """Ask for `answer`; it is told to `ended` once it has come to an end."""
        answer.sent = time.monotonic()
        request = b"".join((self._head, str(len(body)).encode(), b"\r\n\r\n", body))
        if self._idle:
            connection = self._idle.pop()
            self.active[answer] = connection
            connection.ask(request, answer)
        else:
            self.open(request, answer)

    def open(self, request: bytes, answer: Answer) -> None:
        """Send `request` over a connection of its own."""
        self.active[answer] = None
        task = asyncio.get_running_loop().create_task(self._connect(request, answer))
        self._opening.add(task)
        task.add_done_callback(self._opening.discard)

    async def _connect(self, request: bytes, answer: Answer) -> None:
        loop = asyncio.get_running_loop()
        try:
            _, connection = await loop.create_connection(
                lambda: Connection(self), self._host, self._port, ssl=self._tls
            )
        except OSError as error:
            answer.fail(f"connect: {error.strerror or type(error).__name__}")
            self.end(answer, time.monotonic())
            return
        if answer in self.active:
            self.active[answer] = connection
            connection.ask(request, answer)
        else:  # given up meanwhile
            connection.drop()

    def came(self, connection: "Connection", data: bytes) -> None:
        """Stamp what a connection read. Parsing waits for all that is there to be stamped: tokens come in bursts."""
        if not self._unparsed:
            asyncio.get_running_loop().call_soon(self._parse)
        self._unparsed.append((connection, data, time.monotonic()))

    def _parse(self) -> None:
        """Parse some of what was read, and look whether more has come before parsing the rest."""
        self.parse(SLICE)
        if self._unparsed:
            asyncio.get_running_loop().call_soon(self._parse)

    def parse(self, most: int | None = None) -> None:
        """Parse what was read, `most` of it at most."""
        for _ in range(min(most or len(self._unparsed), len(self._unparsed))):
            connection, data, now = self._unparsed.popleft()
            connection.parse(data, now)

    def end(self, answer: Answer, now: float) -> None:
        """The answer was over at `now`; its connection is no longer its own."""
        if answer in self.active:
            del self.active[answer]
            answer.close(now)
            self._ended(answer)

    def free(self, connection: "Connection") -> None:
        """The connection may be asked again."""
        self._idle.append(connection)

    def forget(self, connection: "Connection") -> None:
        """The connection is closed."""
        if connection in self._idle:
            self._idle.remove(connection)

    def give_up(self, answer: Answer, error: str) -> None:
        """End an answer that is waited for no longer, and its connection."""
        connection = self.active.get(answer)
        answer.fail(error)
        if connection:
            connection.drop()
        self.end(answer, time.monotonic())

    def close(self) -> None:
        """Close what is open. Answers that are still active are not told."""
        for connection in (*self._idle, *self.active.values()):
            if connection:
                connection.drop()
        self.active.clear()


class Connection(asyncio.Protocol):
    """Reads one answer after another."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._parser = httptools.HttpResponseParser(self)
        self._answer: Answer | None = None
        self._request = b""
        self._reused = self._dropped = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Part of asyncio's protocol."""
        self._transport = cast(asyncio.Transport, transport)

    def ask(self, request: bytes, answer: Answer) -> None:
        """Send a request whose answer is `answer`. No other may be on its way."""
        self._answer, self._request = answer, request
        self._rest = b""
        self._refusal = bytearray()
        self._silent = True
        self._streams = False
        self._transport.write(request)

    def drop(self) -> None:
        """Close at once; the answer is not told."""
        self._dropped = True
        self._answer = None
        self._transport.abort()

    def data_received(self, data: bytes) -> None:
        """Part of asyncio's protocol."""
        self._client.came(self, data)

    def parse(self, data: bytes, now: float) -> None:
        """Take what came at `now`."""
        if self._dropped:
            return
        self._now = now
        self._silent = False
        if self._answer is None:  # nobody asked
            self._transport.abort()
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserCallbackError:  # not the server's fault
            raise
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            if self._answer:  # what follows a whole answer may be wrong, too
                self._answer.fail("connection: not HTTP")
            self._transport.abort()

    def connection_lost(self, error: Exception | None) -> None:
        """Part of asyncio's protocol."""
        self._client.parse()
        self._client.forget(self)
        answer, self._answer = self._answer, None
        if answer is None or self._dropped:
            return
        if self._silent and self._reused and answer.error is None:
            # The server closed an idle connection while the request was on its way: a client asks again.
            self._client.open(self._request, answer)
            return
        if answer.done:
            pass  # a server may end its answer by closing
        elif self._silent:
            answer.fail("connection: closed without an answer")
        self._client.end(answer, time.monotonic())

    def on_header(self, name: bytes, value: bytes) -> None:
        """Part of the parser's callbacks."""
        if name.lower() == b"content-type":
            self._streams = value.lower().startswith(EVENTS)

    def on_body(self, body: bytes) -> None:
        """Part of the parser's callbacks."""
        answer = self._answer
        if answer is None:
            return
        if not self._streams or self._parser.get_status_code() != 200:
            if len(self._refusal) < MAX_REFUSAL:
                self._refusal += body
            return
        *lines, self._rest = (self._rest + body).split(b"\n")
        for line in lines:
            if line:
                answer.line(line, self._now)

    def on_message_complete(self) -> None:
        """Part of the parser's callbacks."""
        status = self._parser.get_status_code()
        if status < http.HTTPStatus.OK:  # the answer is still to come
            return
        answer, self._answer = self._answer, None
        if answer is None:
            return
        if status != 200:
            answer.fail(f"HTTP {status}: {_reason(bytes(self._refusal))}")
        elif not self._streams:
            answer.fail("stream: not an event stream")
        self._reused = True
        self._request = b""
        if self._parser.should_keep_alive():
            self._client.free(self)
        else:
            self._transport.close()
        self._client.end(answer, self._now)


def _reason(body: bytes) -> str:
    """What an answer that is no success says, in a word where it has one."""
    try:
        return kind_of(json.loads(body)["error"])
    except (ValueError, LookupError, TypeError):
        return "no error object"
