"""How each of the two APIs words what was generated: a whole response, or the chunks of a stream."""

import secrets
import time
from collections.abc import Sequence
from typing import Any, Protocol

from pydantic import BaseModel

from dualpace.appliance.deployment import Deployment
from dualpace.appliance.generate import Delta
from dualpace.appliance.schema import (
    AssistantMessage,
    ChatChoice,
    ChatChunk,
    ChatChunkChoice,
    ChatCompletion,
    ChatDelta,
    Completion,
    CompletionChoice,
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


class CompletionReply:
    """/v1/completions. `prefixes` is the text that each choice begins with, empty unless the prompt is echoed."""

    def __init__(self, deployment: Deployment, prefixes: Sequence[str], with_usage: bool) -> None:
        self._head = _head("cmpl", deployment) | {"object": "text_completion"}
        self._prefixes = prefixes
        # Where the usage was asked for, every chunk has the field.
        self._usage = {"usage": None} if with_usage else {}

    def opening(self) -> list[BaseModel]:
        """Chunks before any token."""
        return [self.chunk(Delta(index, text, None)) for index, text in enumerate(self._prefixes) if text]

    def chunk(self, delta: Delta) -> BaseModel:
        """A chunk of new text."""
        choice = CompletionChoice(index=delta.choice, text=delta.text, finish_reason=delta.finish_reason)
        return Completion(**self._head, **self._usage, choices=[choice])

    def closing(self, usage: Usage) -> list[BaseModel]:
        """Chunks after all choices."""
        return [Completion(**self._head, choices=[], usage=usage)] if self._usage else []

    def whole(self, texts: Sequence[Delta], usage: Usage) -> BaseModel:
        """The response, unstreamed."""
        choices = [
            CompletionChoice(index=d.choice, text=self._prefixes[d.choice] + d.text, finish_reason=d.finish_reason)
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
        choice = ChatChunkChoice(index=delta.choice, delta=piece, finish_reason=delta.finish_reason)
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
                finish_reason=d.finish_reason or "stop",
            )
            for d in texts
        ]
        return ChatCompletion(**self._head, object="chat.completion", choices=choices, usage=usage)
