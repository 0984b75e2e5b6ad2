"""HTTP/1.1 on one connection: uvicorn's, with bounds on what is taken before a request is known.

A head has to come whole in time and within a size, as have a body's trailers; whatever cannot be read is answered with
the API's error object. Bodies are bounded where they are read, see `limits`.

A client that ends its side of the connection may have left, or wait for its answer: that cannot be told apart until
something is sent, which only the connection of one that has left refuses.
"""

import asyncio
import socket
from collections.abc import Callable
from typing import Any, cast

from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from dualpace.appliance.errors import ApiError, invalid, too_large, too_slow
from dualpace.appliance.head import fault_of

# From a connection, or the first byte of a later request on it, to the end of that request's head.
HEAD_S = 10.0
HEAD_BYTES = 65536
# What the parser is given at once.
PIECE_BYTES = 16384
# Where a request's scope has the pipe of its answer.
PIPE = "dualpace.pipe"
# Between two looks at the connection of a client that sends no more: the first, and that before it is sent something
# again.
LOOK_S = 0.002
PROBE_S = 1.0
_TCP_CLOSE = 7
# After a refusal, for the client to read it before its connection breaks because it was still sending.
LINGER_S = 1.0


class Pipe:
    """Takes pieces of a chunked body at once, where to send each through the ASGI application costs more than it is."""

    def __init__(self, transport: asyncio.Transport, flow: FlowControl, cycle: RequestResponseCycle) -> None:
        self._transport = transport
        self._write = transport.write
        self._flow = flow
        self._cycle = cycle
        # What may be written at any time and means nothing.
        self.nothing = b""
        # Ends what was begun with `socket`.
        self.stop: Callable[[], None] = _nothing
        self._is_alone = cycle.scope["scheme"] == "http"

    @property
    def is_open(self) -> bool:
        """Whether the client takes more now."""
        return not (self._flow.write_paused or self._cycle.disconnected)

    @property
    def socket(self) -> int:
        """Where whoever sets `stop` may send pieces past this, until that is called; -1: nowhere now."""
        if not self._is_alone or not self.is_open or self._transport.get_write_buffer_size():
            return -1
        descriptor: int = self._transport.get_extra_info("socket").fileno()
        return descriptor

    def share(self) -> None:
        """Have no more sent past this: others write to the connection too, or it is about to close."""
        self._is_alone = False
        self.stop()

    def write(self, piece: bytes) -> None:
        """Send a piece, which is not empty, of an answer that has begun and is not complete."""
        self._write(b"%x\r\n%b\r\n" % (len(piece), piece))

    def write_last(self, size: int, piece: bytes) -> None:
        """Send what is left of a piece as `write` sends it: its last bytes, that many."""
        self._write((b"%x\r\n%b\r\n" % (len(piece), piece))[-size:])


def _nothing() -> None:
    pass


class Protocol(HttpToolsProtocol):
    """One connection."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._deadline: asyncio.TimerHandle | None = None
        self._refusal: ApiError | None = None
        self._head_bytes = 0
        # Bytes in pieces of which the parser told nothing: it keeps them, until it has the whole of a field.
        self._untold = 0
        self._running: RequestResponseCycle | None = None
        self._is_half_closed = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Wait for a request."""
        super().connection_made(transport)
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection, whose socket is about to be closed."""
        self._unset_deadline()
        if pipe := self._pipe():
            pipe.share()
        super().connection_lost(exc)
        # uvicorn tells the request that came last, which may wait behind the one that is answered.
        if self._running and not self._running.response_complete:
            self._running.disconnected = True
            self._running.message_event.set()

    def eof_received(self) -> bool:  # type: ignore[override]
        """The client sends no more. What it has asked for is answered, unless it has left."""
        pipe = self._pipe()
        if not self._answers() or self.cycle.more_body or self.scheme == "https" or pipe is None:
            return False
        if not self._is_half_closed:
            self._is_half_closed = True
            pipe.share()
            self._probe()
        return True

    def data_received(self, data: bytes) -> None:
        """Parse what came, unless no more is wanted."""
        for start in range(0, len(data), PIECE_BYTES):
            if self._refusal:
                return
            piece = data[start : start + PIECE_BYTES]
            self._untold += len(piece)
            super().data_received(piece)
            if self._untold > HEAD_BYTES:
                self._refuse(_head_too_large())

    def on_message_begin(self) -> None:
        """A request begins."""
        super().on_message_begin()
        self._head_bytes = self._untold = 0
        self._await_head()

    def on_url(self, url: bytes) -> None:
        """Part of the request's target."""
        self._grow(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """A field of the head, or a trailer of the body."""
        self._grow(len(name) + len(value))
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """The head is whole."""
        self._untold = 0
        self._unset_deadline()
        if fault := fault_of(self.parser.get_http_version(), self.url, self.headers):
            self._refusal = fault
            raise fault  # the parser fails, and with it the request
        super().on_headers_complete()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._running = cycle
        if cycle.scope["http_version"] == "1.0":
            app = _until_close(cycle, app)
        else:
            cast(dict[str, Any], cycle.scope)[PIPE] = Pipe(self.transport, self.flow, cycle)
        super()._start_asgi_task(cycle, app)

    def on_body(self, body: bytes) -> None:
        """Part of the body."""
        self._untold = 0
        super().on_body(body)

    def on_response_complete(self) -> None:
        """Go on with the next request, unless the rest of this one has not come: nobody would read it."""
        super().on_response_complete()
        if self.cycle.response_complete and (self.cycle.more_body or self._is_half_closed):
            self.transport.close()

    def shutdown(self) -> None:
        """Close once the answer that is under way is whole. Of a TLS client that is idle, no farewell is waited for."""
        super().shutdown()
        if self.transport.is_closing():
            self.loop.call_later(LINGER_S, self.transport.abort)

    def send_400_response(self, msg: str) -> None:
        """Refuse what the parser could not read."""
        self._refuse(self._refusal or invalid("The request is not valid HTTP/1.1.", code="invalid_http"))

    def _unsupported_upgrade_warning(self) -> None:
        # What follows would be of a protocol that is not spoken here.
        self.cycle.keep_alive = False

    def _pipe(self) -> Pipe | None:
        """That of the request that is answered; a client of HTTP/1.0 has none, and is sent nothing but its answer."""
        return cast(dict[str, Any], self._running.scope).get(PIPE) if self._running else None

    def _probe(self) -> None:
        """Send what means nothing, if there is such a thing now, and look whether it was refused."""
        assert self._running
        pipe = self._pipe()
        if pipe and not self._running.response_started:
            self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        elif pipe and pipe.is_open and pipe.nothing:
            pipe.write(pipe.nothing)
        self.loop.call_later(LOOK_S, self._look, LOOK_S)

    def _look(self, waited: float) -> None:
        if self.transport.is_closing() or not self._answers():
            return
        state: bytes = self.transport.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)
        if state[0] == _TCP_CLOSE:
            self.transport.abort()
        elif waited >= PROBE_S:
            self._probe()
        else:
            self.loop.call_later(2 * waited, self._look, 2 * waited)

    def _grow(self, size: int) -> None:
        self._untold = 0
        self._head_bytes += size
        if self._head_bytes > HEAD_BYTES:
            self._refusal = _head_too_large()
            raise self._refusal  # the parser fails, and with it the request

    def _await_head(self) -> None:
        self._unset_deadline()
        self._deadline = self.loop.call_later(HEAD_S, self._give_up)

    def _unset_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _give_up(self) -> None:
        if self._answers():
            self._await_head()  # reading may have stopped for the answer to the request before
        elif self.scope is None:
            self.transport.close()
        else:
            self._refuse(too_slow("head", HEAD_S))

    def _answers(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _refuse(self, error: ApiError) -> None:
        """Answer with `error` and take no more. What was asked before that is answered first, and alone."""
        self._refusal = error
        self._unset_deadline()
        if self._answers():
            if self.cycle.more_body and self.pipeline:
                # It is the body of a request that waits for its turn that cannot be read on.
                self.pipeline.popleft()
                assert self._running  # or nothing would wait for its turn
                self.cycle = self.pipeline[0][0] if self.pipeline else self._running
            if not self.cycle.more_body:
                self.cycle.keep_alive = False
                return
            # It is that of the request that is answered.
            self.cycle.disconnected = True
            self.cycle.message_event.set()
            if self.cycle.response_started:
                self.transport.close()
                return
        body = error.body().model_dump_json().encode()
        head = b"content-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n" % len(body)
        self.transport.write(STATUS_LINE[error.status] + head + body)
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self._deadline = self.loop.call_later(LINGER_S, self.transport.close)


def _until_close(cycle: RequestResponseCycle, app: Any) -> Any:
    """`app` for a client of HTTP/1.0, which knows no chunks: an answer of unknown length ends with its connection."""
    cycle.waiting_for_100_continue = False

    async def answered(scope: Any, receive: Any, send: Any) -> None:
        is_sized = True

        async def sending(message: Any) -> None:
            nonlocal is_sized
            if message["type"] == "http.response.start":
                is_sized = any(name.lower() == b"content-length" for name, _ in message["headers"])
                if not is_sized:
                    cycle.chunked_encoding = False
            elif not is_sized:
                cycle.expected_content_length = len(message.get("body", b""))
            await send(message)

        await app(scope, receive, sending)

    return answered


def _head_too_large() -> ApiError:
    return too_large(431, "head", HEAD_BYTES)
