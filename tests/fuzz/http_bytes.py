"""Fuzzes the HTTP protocol with raw bytes: `python -m tests.fuzz.http_bytes -max_total_time=300`.

The first byte of an input is how many bytes come at once, 0 for all; the rest is what a client sends.
"""

import atheris

with atheris.instrument_imports(include=["dualpace.appliance", "uvicorn.protocols"]):
    import asyncio
    import re
    from typing import Any

    import httptools
    from uvicorn.server import ServerState

    from dualpace.appliance.server import configuration
    from tests.fuzz import campaign
    from tests.fuzz.frontend import Frontend, check_answer

FRONTEND = Frontend()
CONFIG = configuration(FRONTEND.app, drain=0)
CONFIG.load()
STATE = ServerState()


class Transport(asyncio.Transport):
    """Keeps what is written, and reads nothing."""

    def __init__(self) -> None:
        super().__init__({"peername": ("127.0.0.1", 1), "sockname": ("127.0.0.1", 2)})
        self.written = bytearray()
        self.closed = False

    def write(self, data: Any) -> None:
        assert not self.closed, "something is written after the end"
        self.written += data

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True

    abort = close

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None: ...

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...


class Answers:
    """Reads answers as a client does."""

    def __init__(self) -> None:
        self.status = 0
        self.type = b""
        self.body = bytearray()
        self.open = self.sized = False

    def on_message_begin(self) -> None:
        self.type, self.open, self.sized = b"", True, False
        self.body.clear()

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() == b"content-type":
            self.type = value
        self.sized |= name.lower() in (b"content-length", b"transfer-encoding")

    def on_body(self, body: bytes) -> None:
        self.body += body

    def on_message_complete(self) -> None:
        status = self.parser.get_status_code()
        self.open = False
        if status != 100:
            check_answer(status, self.type, bytes(self.body))

    def read(self, written: bytes) -> None:
        """Read all that was written before the connection was closed."""
        self.parser = httptools.HttpResponseParser(self)
        self.parser.feed_data(written)
        if self.open and not self.sized:
            self.on_message_complete()
        assert not self.open, "an answer has no end"


def test(data: bytes) -> None:
    """Send an input to a connection, and see that it ends as it should."""
    size = data[0] if data else 0
    sent = data[1:]
    transport = Transport()
    protocol: Any = CONFIG.http_protocol_class(CONFIG, STATE, {}, FRONTEND.loop)

    async def talk() -> None:
        protocol.connection_made(transport)
        for start in range(0, len(sent), size or len(sent) or 1):
            if transport.closed:
                break
            protocol.data_received(sent[start : start + (size or len(sent))])
            await asyncio.sleep(0)

    def is_over() -> bool:
        waits = protocol.cycle is not None and protocol.cycle.more_body
        return not STATE.tasks or waits

    async def leave() -> None:
        protocol.connection_lost(None)

    FRONTEND.run(talk, is_over)
    FRONTEND.run(leave, lambda: not STATE.tasks)
    assert not STATE.connections
    # A HEAD has answers without the body that they announce, which cannot be told from its answers alone.
    if not re.search(rb"HEAD|Head|head", sent):
        Answers().read(bytes(transport.written))


if __name__ == "__main__":
    campaign.run("http", test)
