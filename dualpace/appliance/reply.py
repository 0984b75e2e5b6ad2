"""How each of the two APIs words what was generated: a whole response, or the chunks of a stream."""

import secrets
import time
from collections.abc import Sequence
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
    """One answer of one API. Chunks are JSON."""

    def opening(self) -> list[bytes]:
        """What a stream begins with, before any token."""

    def chunk(self, delta: Delta) -> bytes:
        """New text of one choice."""

    def closing(self, usage: Usage) -> list[bytes]:
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


class _Chunks:
    """The chunks of one stream, which begin alike: that much is written once."""

    def __init__(self, head: dict[str, Any], with_usage: bool) -> None:
        self._head = to_json(head)[:-1] + b',"choices":'
        # Where the usage was asked for, every chunk has the field.
        self._end = b',"usage":null}' if with_usage else b"}"
        self._with_usage = with_usage

    def of(self, choice: dict[str, Any]) -> bytes:
        """A chunk of one choice."""
        return b"%b[%b]%b" % (self._head, to_json(choice), self._end)

    def closing(self, usage: Usage) -> list[bytes]:
        """The chunk with the usage, if it was asked for."""
        return [b'%b[],"usage":%b}' % (self._head, to_json(usage))] if self._with_usage else []


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
        self._chunks = _Chunks(self._head, with_usage)

    def opening(self) -> list[bytes]:
        """Chunks before any token."""
        return []

    def chunk(self, delta: Delta) -> bytes:
        """A chunk of new text."""
        choice: dict[str, Any] = {"index": delta.choice, "text": delta.text, "finish_reason": delta.finish_reason}
        if delta.logprobs:
            choice["logprobs"] = _completion_logprobs(delta.logprobs)
        return self._chunks.of(choice)

    def closing(self, usage: Usage) -> list[bytes]:
        """Chunks after all choices."""
        return self._chunks.closing(usage)

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
        self._chunks = _Chunks(self._head | {"object": "chat.completion.chunk"}, with_usage)

    def opening(self) -> list[bytes]:
        """Chunks before any token."""
        role = {"role": "assistant", "content": ""}
        return [
            self._chunks.of({"index": index, "delta": role, "finish_reason": None}) for index in range(self._choices)
        ]

    def chunk(self, delta: Delta) -> bytes:
        """A chunk of new text."""
        piece = {"content": delta.text} if delta.text else {}
        choice: dict[str, Any] = {"index": delta.choice, "delta": piece, "finish_reason": delta.finish_reason}
        if delta.logprobs:
            choice["logprobs"] = _chat_logprobs(delta.logprobs)
        return self._chunks.of(choice)

    def closing(self, usage: Usage) -> list[bytes]:
        """Chunks after all choices."""
        return self._chunks.closing(usage)

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
