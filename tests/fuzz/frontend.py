"""A frontend in this process, without sockets and threads of its own, that fuzzers ask."""

import asyncio
import json
import logging
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import uvloop

from dualpace.appliance.app import create_app
from dualpace.appliance.deployment import load
from dualpace.appliance.dispatch import Dispatcher
from tests.appliance.bundles import write_bundle
from tests.appliance.fake_ring import FakeRing

# Requests that end by themselves have ended by then, whatever the machine is doing.
PATIENCE_S = 20.0


class Unforeseen(logging.Handler):
    """Raises what is logged as an error: only what nobody foresaw is."""

    def emit(self, record: logging.LogRecord) -> None:
        """Take a record."""
        if record.levelno >= logging.ERROR:
            raise AssertionError(f"{record.getMessage()} {record.exc_info}")


class Frontend:
    """The app over a scripted engine. What it is asked runs on `loop` until it is over."""

    def __init__(self) -> None:
        logging.basicConfig(handlers=[Unforeseen()], level=logging.ERROR)
        logging.raiseExceptions = True
        folder = tempfile.TemporaryDirectory()
        self._folder = folder
        self.ring = FakeRing()
        deployment = load(write_bundle(Path(folder.name) / "bundle", max_body="64KiB"))
        self.dispatcher = Dispatcher(self.ring, deployment.plan.schedule)
        self.app = create_app(deployment, self.dispatcher)
        self.loop = uvloop.new_event_loop()
        asyncio.set_event_loop(self.loop)
        self.loop.set_exception_handler(self._fail)
        self._failure: dict[str, Any] | None = None

    def run(self, work: Callable[[], Awaitable[None]], over: Callable[[], bool]) -> None:
        """Do `work`, and then turn the engine until it is `over`. Raises what nobody foresaw."""
        self.loop.run_until_complete(self._run(work, over))
        assert self._failure is None, self._failure
        assert not self.dispatcher._routes
        assert (self.dispatcher._queued_tokens, self.dispatcher._held) == (0, {})

    async def _run(self, work: Callable[[], Awaitable[None]], over: Callable[[], bool]) -> None:
        await work()
        deadline = self.loop.time() + PATIENCE_S
        while not over() or self.dispatcher._routes:
            assert self.loop.time() < deadline, "a request goes on for ever"
            self.dispatcher._deliver(self.ring.wait(0))
            await asyncio.sleep(0)

    def _fail(self, _: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        self._failure = context


def check_answer(status: int, content_type: bytes, body: bytes) -> None:
    """Raises for what no client could use: a failure of the server, or a refusal that is no error object."""
    assert 200 <= status < 500, (status, body)
    if status >= 400:
        assert content_type == b"application/json", content_type
        assert set(json.loads(body)["error"]) == {"message", "type", "param", "code"}
    elif content_type.startswith(b"text/event-stream"):
        assert body.endswith(b"data: [DONE]\n\n")
    elif content_type == b"application/json":
        json.loads(body)
