"""A completion streamed over HTTP, with the times that matter to whoever waits for it."""

import http.client
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

# A long prompt is read without a word; a server that is silent for longer has lost the request.
SILENCE_S = 600.0


class CompletionError(Exception):
    """A request that was refused, broken off or never answered; the message is the server's where it has one."""


@dataclass(frozen=True, slots=True)
class Timing:
    """`tokens` generated; `ttft`, time to first token, and `tpot`, time per output token after it, in seconds."""

    tokens: int
    ttft: float
    tpot: float


def complete(
    connection: http.client.HTTPConnection, key: str, request: dict[str, Any], write: Callable[[str], object]
) -> Timing:
    """Stream the completion that `request` (fields of /v1/completions) asks for, handing each piece of text to `write`.

    `key` is the API key, or "". The connection is closed in any case. Raises CompletionError unless the answer has come
    to its end.
    """
    start = time.perf_counter()
    first = last = 0.0
    tokens = 0
    for texts, counted in _events(connection, key, request):
        for text in texts:
            last = time.perf_counter()
            first = first or last
            write(text)
        tokens = counted or tokens
    return Timing(tokens=tokens, ttft=first - start, tpot=(last - first) / max(tokens - 1, 1))


def _events(
    connection: http.client.HTTPConnection, key: str, request: dict[str, Any]
) -> Iterator[tuple[list[str], int]]:
    """Each event's texts and its count of tokens, 0 where it has none, up to `[DONE]`. Raises CompletionError."""
    body = json.dumps(request | {"stream": True, "stream_options": {"include_usage": True}})
    headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {})
    connection.timeout = SILENCE_S
    try:
        connection.request("POST", "/v1/completions", body, headers)
        response = connection.getresponse()
        if response.status != http.HTTPStatus.OK:
            raise CompletionError(_refusal(response))
        for line in response:
            data = line.removeprefix(b"data:").strip()
            if data == b"[DONE]":
                return
            if data == line.strip():
                continue
            event = json.loads(data)
            if "error" in event:
                raise CompletionError(str(event["error"]["message"]))
            usage = event.get("usage")
            yield [choice["text"] for choice in event["choices"]], usage["completion_tokens"] if usage else 0
        raise CompletionError("the server broke off the answer")
    except TimeoutError as error:
        raise CompletionError(f"the server was silent for {SILENCE_S:g} s") from error
    except (OSError, http.client.HTTPException) as error:
        raise CompletionError(f"the connection to the server failed: {error or type(error).__name__}") from error
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise CompletionError("the server sent what is no event of a completion") from error
    finally:
        connection.close()


def _refusal(response: http.client.HTTPResponse) -> str:
    """The server's sentence, or the status where what answers does not speak the API."""
    body = response.read()
    try:
        return str(json.loads(body)["error"]["message"])
    except (ValueError, LookupError, TypeError):
        return f"the server answered {response.status} {response.reason}".rstrip()
