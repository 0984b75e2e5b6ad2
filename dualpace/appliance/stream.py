"""The two ways in which a generation is answered: server-sent events, or one JSON body."""

import asyncio
import logging

from pydantic import BaseModel
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from dualpace.appliance.errors import ApiError, failed
from dualpace.appliance.generate import Delta, Generation
from dualpace.appliance.reply import Reply

EVENT_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]

# A client that takes nothing for this long gets no more: the engine's side has long been ended.
SEND_S = 30.0

logger = logging.getLogger(__name__)


class _NotTakenError(Exception):
    """The client has not made room for the next piece in time."""


class Answer(Response):
    """Runs a generation while its client stays: whatever ends the answer early ends the generation."""

    def __init__(self, generation: Generation, reply: Reply) -> None:
        super().__init__()
        self._generation = generation
        self._reply = reply

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer the request. A client that does not read leaves it unfinished, and is cut off by the server."""

        async def send_in_time(message: Message) -> None:
            try:
                async with asyncio.timeout(SEND_S):
                    await send(message)
            except TimeoutError as error:
                raise _NotTakenError from error

        async with self._generation:
            watch = asyncio.create_task(self._watch(receive))
            try:
                await self._respond(scope, receive, send_in_time)
            except _NotTakenError:
                logger.warning("a client did not read for %g s and is cut off", SEND_S)
            finally:
                watch.cancel()

    async def _watch(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
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
        async def emit(events: list[BaseModel]) -> None:
            lines = [f"data: {event.model_dump_json(exclude_unset=True)}\n\n" for event in events]
            if lines:
                await send({"type": "http.response.body", "body": "".join(lines).encode(), "more_body": True})

        await send({"type": "http.response.start", "status": 200, "headers": EVENT_HEADERS})
        try:
            await emit(self._reply.opening())
            async for deltas in self._generation.deltas():
                await emit([self._reply.chunk(delta) for delta in deltas])
            await emit(self._reply.closing(self._generation.usage()))
        except ApiError as error:
            await emit([error.body()])
        except _NotTakenError:
            raise
        except Exception:
            logger.exception("a stream failed")
            await emit([failed("an internal error").body()])
        await send({"type": "http.response.body", "body": b"data: [DONE]\n\n", "more_body": False})
