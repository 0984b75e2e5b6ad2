"""How each of the two APIs words what was generated: a whole response, or the chunks of a stream."""

import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from pydantic import BaseModel
from pydantic_core import to_json

from dualpace.appliance.deployment import Deployment
from dualpace.appliance.generate import Delta
from dualpace.appliance.logprobs import Ranked, TokenLogprob
from dualpace.appliance.responses import (
    AssistantMessage,
    ChatChoice,
    ChatCompletion,
    ChatLogprobs,
    ChatToken,
    Completion,
    CompletionChoice,
    CompletionLogprobs,
    RankedToken,
    Usage,
)


class Reply(Protocol):
    """One answer of one API. Chunks are server-sent events."""

    def opening(self) -> bytes:
        """What a stream begins with, before any token."""

    def chunk(self, delta: Delta) -> bytes:
        """New text of one choice."""

    def frame(self, choice: int) -> tuple[bytes, bytes]:
        """What a chunk that has nothing but text of a choice has before and behind the JSON of that text."""

    def closing(self, usage: Usage) -> bytes:
        """What a stream ends with, after all choices."""

    def whole(self, texts: Sequence[Delta], usage: Usage) -> BaseModel:
        """The response to a request that is not streamed, from each choice's whole text."""


def _head(prefix: str, deployment: Deployment) -> dict[str, Any]:
    return {
        "id": f"{prefix}-{secrets.token_hex(12)}",
        "created": int(time.time()),
        "model": deployment.name,
        "system_fingerprint": deployment.fingerprint,
    }


def event(data: bytes) -> bytes:
    """A server-sent event."""
    return b"data: %b\n\n" % data


class _Quoted(dict[str, bytes]):
    def __missing__(self, piece: str) -> bytes:
        quoted = self[piece] = to_json(piece)
        return quoted


# The JSON of pieces of text that come again and again: those of the vocabulary.
QUOTED: Mapping[str, bytes] = _Quoted()


class _Chunks:
    """The chunks of one stream, which begin alike; `choice` is what a chunk says of the choice that it is of."""

    def __init__(self, head: dict[str, Any], with_usage: bool, choice: Callable[[Delta], dict[str, Any]]) -> None:
        self._head = to_json(head)[:-1]
        # Where the usage was asked for, every chunk has the field.
        self._end = b',"usage":null}' if with_usage else b"}"
        self._with_usage = with_usage
        self._choice = choice
        self._frames: dict[int, tuple[bytes, bytes]] = {}

    def of(self, choice: dict[str, Any]) -> bytes:
        """A chunk of one choice."""
        return event(b'%b,"choices":[%b]%b' % (self._head, to_json(choice), self._end))

    def chunk(self, delta: Delta) -> bytes:
        """A chunk of new text, which most have nothing beside: then what is around the text is written once."""
        if delta.finish_reason or delta.logprobs:
            return self.of(self._choice(delta))
        before, after = self.frame(delta.choice)
        return b"%b%b%b" % (before, to_json(delta.text), after)

    def frame(self, index: int) -> tuple[bytes, bytes]:
        """As Reply has it."""
        if index not in self._frames:
            mark = "\0"
            before, _, after = self.of(self._choice(Delta(index, mark, None))).rpartition(to_json(mark))
            self._frames[index] = before, after
        return self._frames[index]

    def closing(self, usage: Usage) -> bytes:
        """The chunk with the usage, if it was asked for."""
        if not self._with_usage:
            return b""
        return event(b'%b,"choices":[],"usage":%b}' % (self._head, to_json(usage)))


def _completion_logprobs(entries: Sequence[TokenLogprob]) -> CompletionLogprobs:
    def by_text(entry: TokenLogprob) -> dict[str, float] | None:
        # Of tokens that are written alike, the most probable counts.
        logprobs: dict[str, float] = {}
        for token, logprob in (*entry.top, entry.chosen):
            if logprob is not None:
                logprobs.setdefault(token.text, logprob)
        return logprobs or None

    return CompletionLogprobs(
        tokens=[entry.chosen.token.text for entry in entries],
        token_logprobs=[entry.chosen.logprob for entry in entries],
        top_logprobs=[by_text(entry) for entry in entries],
        text_offset=[entry.offset for entry in entries],
    )


def _chat_logprobs(entries: Sequence[TokenLogprob]) -> ChatLogprobs:
    def fields(ranked: Ranked) -> dict[str, Any]:
        return {"token": ranked.token.text, "bytes": ranked.token.bytes, "logprob": ranked.logprob}

    content = [
        ChatToken(**fields(entry.chosen), top_logprobs=[RankedToken(**fields(top)) for top in entry.top])
        for entry in entries
    ]
    return ChatLogprobs(content=content, refusal=None)


class CompletionReply:
    """/v1/completions."""

    def __init__(self, deployment: Deployment, with_usage: bool) -> None:
        self._head = _head("cmpl", deployment) | {"object": "text_completion"}
        chunks = _Chunks(self._head, with_usage, self._choice)
        self.chunk, self.frame, self.closing = chunks.chunk, chunks.frame, chunks.closing

    def opening(self) -> bytes:
        """Nothing comes before the tokens."""
        return b""

    def _choice(self, delta: Delta) -> dict[str, Any]:
        choice: dict[str, Any] = {"index": delta.choice, "text": delta.text, "finish_reason": delta.finish_reason}
        if delta.logprobs:
            choice["logprobs"] = _completion_logprobs(delta.logprobs)
        return choice

    def whole(self, texts: Sequence[Delta], usage: Usage) -> BaseModel:
        """The response, unstreamed."""
        choices = [
            CompletionChoice(
                index=d.choice,
                text=d.text,
                logprobs=None if d.logprobs is None else _completion_logprobs(d.logprobs),
                finish_reason=d.ended_by,
            )
            for d in texts
        ]
        return Completion(**self._head, choices=choices, usage=usage)


class ChatReply:
    """/v1/chat/completions, of `choices` choices."""

    def __init__(self, deployment: Deployment, choices: int, with_usage: bool) -> None:
        self._head = _head("chatcmpl", deployment)
        self._choices = choices
        self._chunks = _Chunks(self._head | {"object": "chat.completion.chunk"}, with_usage, self._choice)
        self.chunk, self.frame, self.closing = self._chunks.chunk, self._chunks.frame, self._chunks.closing

    def opening(self) -> bytes:
        """Who speaks, for each choice."""
        role = {"role": "assistant", "content": ""}
        return b"".join(
            self._chunks.of({"index": index, "delta": role, "finish_reason": None}) for index in range(self._choices)
        )

    def _choice(self, delta: Delta) -> dict[str, Any]:
        piece = {"content": delta.text} if delta.text else {}
        choice: dict[str, Any] = {"index": delta.choice, "delta": piece, "finish_reason": delta.finish_reason}
        if delta.logprobs:
            choice["logprobs"] = _chat_logprobs(delta.logprobs)
        return choice

    def whole(self, texts: Sequence[Delta], usage: Usage) -> BaseModel:
        """The response, unstreamed."""
        choices = [
            ChatChoice(
                index=d.choice,
                message=AssistantMessage(role="assistant", content=d.text),
                logprobs=None if d.logprobs is None else _chat_logprobs(d.logprobs),
                finish_reason=d.ended_by,
            )
            for d in texts
        ]
        return ChatCompletion(**self._head, object="chat.completion", choices=choices, usage=usage)
