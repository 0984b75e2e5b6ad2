"""How each of the two APIs words what was generated: a whole response, or the chunks of a stream."""

import secrets
import time
from collections.abc import Sequence
from typing import Any, Protocol

from pydantic import BaseModel

from dualpace.appliance.deployment import Deployment
from dualpace.appliance.generate import Delta
from dualpace.appliance.logprobs import Ranked, TokenLogprob
from dualpace.appliance.responses import (
    AssistantMessage,
    ChatChoice,
    ChatChunk,
    ChatChunkChoice,
    ChatCompletion,
    ChatDelta,
    ChatLogprobs,
    ChatToken,
    Completion,
    CompletionChoice,
    CompletionLogprobs,
    RankedToken,
    Usage,
)


class Reply(Protocol):
    """One answer of one API. Chunks are dumped without their unset fields."""

    def opening(self) -> list[BaseModel]:
        """What a stream begins with, before any token."""

    def chunk(self, delta: Delta) -> BaseModel:
        """New text of one choice."""

    def closing(self, usage: Usage) -> list[BaseModel]:
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
        # Where the usage was asked for, every chunk has the field.
        self._usage = {"usage": None} if with_usage else {}

    def opening(self) -> list[BaseModel]:
        """Chunks before any token."""
        return []

    def chunk(self, delta: Delta) -> BaseModel:
        """A chunk of new text."""
        logprobs = {"logprobs": _completion_logprobs(delta.logprobs)} if delta.logprobs else {}
        choice = CompletionChoice(index=delta.choice, text=delta.text, finish_reason=delta.finish_reason, **logprobs)
        return Completion(**self._head, **self._usage, choices=[choice])

    def closing(self, usage: Usage) -> list[BaseModel]:
        """Chunks after all choices."""
        return [Completion(**self._head, choices=[], usage=usage)] if self._usage else []

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
        self._usage = {"usage": None} if with_usage else {}

    def _chunk(self, choices: list[ChatChunkChoice], **usage: Usage | None) -> ChatChunk:
        return ChatChunk(**self._head, object="chat.completion.chunk", choices=choices, **usage)

    def opening(self) -> list[BaseModel]:
        """Chunks before any token."""
        role = ChatDelta(role="assistant", content="")
        return [
            self._chunk([ChatChunkChoice(index=index, delta=role, finish_reason=None)], **self._usage)
            for index in range(self._choices)
        ]

    def chunk(self, delta: Delta) -> BaseModel:
        """A chunk of new text."""
        piece = ChatDelta(content=delta.text) if delta.text else ChatDelta()
        logprobs = {"logprobs": _chat_logprobs(delta.logprobs)} if delta.logprobs else {}
        choice = ChatChunkChoice(index=delta.choice, delta=piece, finish_reason=delta.finish_reason, **logprobs)
        return self._chunk([choice], **self._usage)

    def closing(self, usage: Usage) -> list[BaseModel]:
        """Chunks after all choices."""
        return [self._chunk([], usage=usage)] if self._usage else []

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
