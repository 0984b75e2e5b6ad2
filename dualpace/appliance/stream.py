"""The two ways in which a generation is answered: server-sent events, or one JSON body."""

import asyncio
import logging

from pydantic_core import to_json
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from dualpace.appliance.access import BODY
from dualpace.appliance.errors import CLIENT_GONE, ApiError, failed
from dualpace.appliance.generate import Delta, Generation
from dualpace.appliance.keys import ACCOUNT, Account
from dualpace.appliance.log import report_of
from dualpace.appliance.reply import Reply, event

EVENT_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]

# A client that takes nothing for this long gets no more: the engine's side has long been ended.
SEND_S = 30.0

logger = logging.getLogger(__name__)


class Answer(Response):
    """Runs a generation while its client stays: whatever ends the answer early ends the generation."""

    def __init__(self, generation: Generation, reply: Reply) -> None:
        super().__init__()
        self._generation = generation
        self._reply = reply
        self._sending_since: float | None = None
        self._is_cut_off = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer the request. A client that does not read leaves it unfinished, and is cut off by the server."""
        loop = asyncio.get_running_loop()
        send_body = scope.get(BODY, send)

        async def send_in_time(message: Message) -> None:
            self._sending_since = loop.time()
            await (send_body if message["type"] == "http.response.body" else send)(message)
            self._sending_since = None

        account: Account | None = scope.get(ACCOUNT)
        async with self._generation:
            watch = asyncio.create_task(self._watch(receive))
            # A task of its own, for every token wakes it: as part of this one it would be reached through all callers.
            self._task = asyncio.create_task(self._respond(scope, receive, send_in_time))
            self._timer = loop.call_later(SEND_S, self._look)
            try:
                await self._task
            except asyncio.CancelledError:
                if not self._is_cut_off:
                    raise
                logger.warning("a client did not read for %g s and is cut off", SEND_S)
            finally:
                self._timer.cancel()
                watch.cancel()
                usage = self._generation.usage()
                report_of(scope).update(self._generation.report(usage))
                if account:
                    account.spend(usage.total_tokens)

    def _look(self) -> None:
        """Cut the client off if a send has waited for it too long. To time each send would cost as much as sending."""
        loop = asyncio.get_running_loop()
        now = loop.time()
        since = now if self._sending_since is None else self._sending_since
        self._is_cut_off = now - since >= SEND_S
        if self._is_cut_off:
            self._generation.leave()
            self._task.cancel()
        else:
            self._timer = loop.call_at(since + SEND_S, self._look)

    async def _watch(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        if not self._task.done():  # a whole answer ends this, too
            self._generation.leave()

    async def _respond(self, scope: Scope, receive: Receive, send: Send) -> None:
        raise NotImplementedError


class Whole(Answer):
    """One JSON body, once every choice has finished."""

    async def _respond(self, scope: Scope, receive: Receive, send: Send) -> None:
        texts = [Delta(index, "", None) for index in range(len(self._generation.choices))]
        async for deltas in self._generation.deltas():
            for delta in deltas:
                texts[delta.choice] = texts[delta.choice].followed_by(delta)
        whole = self._reply.whole(texts, self._generation.usage())
        await Response(whole.model_dump_json(), media_type="application/json")(scope, receive, send)


class EventStream(Answer):
    """Server-sent events as tokens come. A failure becomes an error event; `[DONE]` always ends the stream."""

    async def _respond(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def emit(events: bytes) -> None:
            if events:
                await send({"type": "http.response.body", "body": events, "more_body": True})

        await send({"type": "http.response.start", "status": 200, "headers": EVENT_HEADERS})
        try:
            await emit(self._reply.opening())
            chunk = self._reply.chunk
            async for deltas in self._generation.deltas():
                await emit(b"".join(map(chunk, deltas)))
            await emit(self._reply.closing(self._generation.usage()))
        except Exception as error:
            told = error if isinstance(error, ApiError) else failed("an internal error")
            if told is not error:
                logger.exception("a stream failed")
            if told.status != CLIENT_GONE:
                report_of(scope)["error"] = told.message
            await emit(event(to_json(told.body())))
        await send({"type": "http.response.body", "body": event(b"[DONE]"), "more_body": False})
