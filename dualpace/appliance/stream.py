"""The two ways in which a generation is answered: server-sent events, or one JSON body."""

import asyncio
import logging
from collections.abc import Callable
from functools import partial

from pydantic_core import to_json
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from dualpace.appliance.dispatch import OpenSpout, Sink
from dualpace.appliance.errors import CLIENT_GONE, ApiError, failed
from dualpace.appliance.generate import Choice, Delta, Generation
from dualpace.appliance.keys import ACCOUNT, Account
from dualpace.appliance.log import report_of
from dualpace.appliance.logprobs import TokenLogprob
from dualpace.appliance.protocol import PIPE, Pipe
from dualpace.appliance.reply import QUOTED, Reply, event
from dualpace.appliance.responses import FinishReason

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
        pipe: Pipe | None = scope.get(PIPE)

        async def send_in_time(message: Message) -> None:
            if pipe and pipe.is_open:
                await send(message)  # which takes no time
                return
            try:
                async with asyncio.timeout(SEND_S):
                    await send(message)
            except TimeoutError as error:
                raise _NotTakenError from error

        account: Account | None = scope.get(ACCOUNT)
        async with self._generation:
            watch = asyncio.create_task(self._watch(receive))
            try:
                await self._respond(scope, receive, send_in_time)
            except _NotTakenError:
                self._generation.leave()
                logger.warning("a client did not read for %g s and is cut off", SEND_S)
            finally:
                watch.cancel()
                usage = self._generation.usage()
                report_of(scope).update(self._generation.report(usage))
                if account:
                    account.spend(usage.total_tokens)

    async def _watch(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self._generation.leave()

    async def _respond(self, scope: Scope, receive: Receive, send: Send) -> None:
        raise NotImplementedError

    def _listen(self, pass_on: Callable[[], None]) -> None:
        """Have `pass_on` take tokens as they come: to wake this task for each costs more than the token does."""

        def listener() -> bool:
            pass_on()
            return not self._generation.is_over

        self._generation.listen(listener)


class _Text:
    """The text of one choice, as it grows."""

    def __init__(self) -> None:
        self._pieces: list[str] = []
        self._logprobs: list[TokenLogprob] | None = None
        self._finish_reason: FinishReason | None = None

    def add(self, delta: Delta) -> None:
        """Go on with `delta`."""
        self._pieces.append(delta.text)
        if delta.logprobs is not None:
            self._logprobs = [*(self._logprobs or ()), *delta.logprobs]
        self._finish_reason = delta.finish_reason

    def keep(self, piece: str) -> None:
        """Go on with the text of a token."""
        self._pieces.append(piece)

    def whole(self, index: int) -> Delta:
        """All of it, of the choice with that index."""
        logprobs = None if self._logprobs is None else tuple(self._logprobs)
        return Delta(index, "".join(self._pieces), self._finish_reason, logprobs)


class _TextSink:
    """Keeps the text of tokens of a plain choice."""

    def __init__(self, text: _Text, choice: Choice) -> None:
        self._keep, self._piece_of, self.skip = text.keep, choice.piece, choice.skip

    def take(self, token: int, now: float) -> bool:
        """As Sink has it."""
        piece = self._piece_of(token)
        if piece is not None:
            self._keep(piece)
        return piece is not None

    def spill(self, text: bytes, size: int) -> None:
        """Never: no spout is opened."""
        raise NotImplementedError


class Whole(Answer):
    """One JSON body, once every choice has finished."""

    async def _respond(self, scope: Scope, receive: Receive, send: Send) -> None:
        texts = [_Text() for _ in self._generation.choices]

        def keep(deltas: list[Delta]) -> None:
            for delta in deltas:
                texts[delta.choice].add(delta)

        self._generation.pour(lambda index, choice, _: _TextSink(texts[index], choice))
        self._listen(lambda: keep(self._generation.take()))
        async for deltas in self._generation.deltas():
            keep(deltas)
        whole = self._reply.whole([text.whole(index) for index, text in enumerate(texts)], self._generation.usage())
        await Response(whole.model_dump_json(), media_type="application/json")(scope, receive, send)


class _EventSink:
    """Sends tokens of a plain choice at once, if the client takes them now, and then has a spout do so."""

    def __init__(self, pipe: Pipe, frame: tuple[bytes, bytes], choice: Choice, spout: OpenSpout | None) -> None:
        self._pipe = pipe
        self._frame = frame
        self._piece_of, self.skip = choice.piece, choice.skip
        self._spout = spout

    def take(self, token: int, now: float) -> bool:
        """As Sink has it."""
        if not self._pipe.is_open:
            return False
        piece = self._piece_of(token)
        if piece:
            text = QUOTED[piece]
            self._pipe.write(self._framed(text))
            if self._spout:
                self._spout(self._pipe, self._frame, token, text, now)
        return piece is not None

    def spill(self, text: bytes, size: int) -> None:
        """As Sink has it."""
        self._pipe.write_last(size, self._framed(text))

    def _framed(self, text: bytes) -> bytes:
        before, after = self._frame
        return b"%b%b%b" % (before, text, after)


class EventStream(Answer):
    """Server-sent events as tokens come. A failure becomes an error event; `[DONE]` always ends the stream."""

    async def _respond(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def emit(events: bytes) -> None:
            if events:
                await send({"type": "http.response.body", "body": events, "more_body": True})

        await send({"type": "http.response.start", "status": 200, "headers": EVENT_HEADERS})
        try:
            await emit(self._reply.opening())
            if PIPE in scope:
                scope[PIPE].nothing = b":\n\n"  # a comment
                self._generation.pour(partial(self._sink, scope[PIPE]))
                self._listen(partial(self._pass_on, scope[PIPE]))
            async for deltas in self._generation.deltas():
                await emit(b"".join(map(self._reply.chunk, deltas)))
            await emit(self._reply.closing(self._generation.usage()))
        except _NotTakenError:
            raise
        except Exception as error:
            told = error if isinstance(error, ApiError) else failed("an internal error")
            if told is not error:
                logger.exception("a stream failed")
            if told.status != CLIENT_GONE:
                report_of(scope)["error"] = told.message
            await emit(event(to_json(told.body())))
        await send({"type": "http.response.body", "body": event(b"[DONE]"), "more_body": False})

    def _sink(self, pipe: Pipe, index: int, choice: Choice, spout: OpenSpout) -> Sink:
        # The pieces of several choices may not overtake each other.
        is_alone = len(self._generation.choices) == 1
        return _EventSink(pipe, self._reply.frame(index), choice, spout if is_alone else None)

    def _pass_on(self, pipe: Pipe) -> None:
        """Send what has come, if the client takes it now."""
        if pipe.is_open and (deltas := self._generation.take()):
            pipe.write(b"".join(map(self._reply.chunk, deltas)))
