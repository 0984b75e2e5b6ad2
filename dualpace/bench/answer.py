"""One answer as it streams in: when its pieces came, how many tokens they are, and whether it is a success."""

import json
from array import array
from typing import Any

DONE = b"[DONE]"
# What a whole answer may end with. Others, such as "abort" and "error", say that the server gave it up.
WHOLE = frozenset({"stop", "length", "tool_calls", "function_call", "content_filter"})
# A count beyond it is none.
MOST_TOKENS = 1 << 32
_TEXTS = ("content", "reasoning_content", "reasoning")


class Answer:
    """What has come of the answer to one request; times are those of `time.monotonic()`.

    `intended` is when the load meant to send it, `sent` when it was, `arrivals` when each piece of text came, and `end`
    when the answer ended. `tokens` is the server's count, `pieces` where it gives none.
    """

    __slots__ = (
        "arrivals", "asked", "block", "cached", "done", "end", "error", "finish", "intended", "prompt", "sent", "usage",
    )  # fmt: skip

    def __init__(self, intended: float, asked: int, block: int = 0) -> None:
        """`asked`: tokens that the request is for. `block`: the part of the run that it belongs to."""
        self.intended = intended
        self.asked = asked
        self.block = block
        self.sent = intended
        self.end = intended
        self.arrivals = array("d")
        self.usage = self.prompt = self.cached = 0
        self.finish: str | None = None
        self.done = False
        self.error: str | None = None

    @property
    def tokens(self) -> int:
        """Tokens of the answer."""
        return self.usage or len(self.arrivals)

    def line(self, line: bytes, now: float) -> None:
        """Take a line of the stream, which has come at `now`."""
        if not line.startswith(b"data:"):
            return
        data = line[5:].strip()
        if data == DONE:
            self.done = True
            return
        try:
            event = json.loads(data)
            if error := event.get("error"):
                self.fail(f"stream: {kind_of(error)}")
                return
            self._take(event, now)
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
            self.fail("stream: not an event of the API")

    def _take(self, event: dict[str, Any], now: float) -> None:
        for choice in event["choices"]:
            text = choice.get("text")
            if text is None and (delta := choice.get("delta")):
                text = any(delta.get(name) for name in _TEXTS) or delta.get("tool_calls")
            if text:
                self.arrivals.append(now)
            if finish := choice.get("finish_reason"):
                self.finish = str(finish)
        if usage := event.get("usage"):
            self.usage = _count(usage["completion_tokens"])
            self.prompt = _count(usage["prompt_tokens"])
            self.cached = _count((usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0)

    def fail(self, error: str) -> None:
        """It is no success; the first reason is kept."""
        self.error = self.error or error

    def close(self, now: float) -> None:
        """The answer has ended, by itself or not."""
        self.end = now
        if not self.done:
            self.fail("stream: broken off")
        elif self.finish not in WHOLE:
            self.fail(f"stream: ended with {self.finish or 'no finish reason'}")
        elif not self.arrivals:
            self.fail("stream: no text")


def _count(tokens: object) -> int:
    """`tokens` if that can be a number of them. Raises ValueError."""
    if type(tokens) is not int or not 0 <= tokens < MOST_TOKENS:
        raise ValueError(f"{tokens!r:.80} is no number of tokens")
    return tokens


def kind_of(error: object) -> str:
    """An API error's code or type, which is the same for all errors of a kind, or else its message."""
    if not isinstance(error, dict):
        return str(error)[:80]
    return str(error.get("code") or error.get("type") or error.get("message") or "error")[:80]
