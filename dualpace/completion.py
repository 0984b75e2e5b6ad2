"""A completion streamed over HTTP, with the times that matter to whoever waits for it."""

import http.client
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


class CompletionError(Exception):
    """A request that the server refused or broke off; the message is the server's."""


@dataclass(frozen=True, slots=True)
class Timing:
    """`tokens` generated; `ttft`, time to first token, and `tpot`, time per output token after it, in seconds."""

    tokens: int
    ttft: float
    tpot: float


def complete(address: tuple[str, int], key: str, request: dict[str, Any], write: Callable[[str], object]) -> Timing:
    """Stream the completion that `request` (fields of /v1/completions) asks for, handing each piece of text to `write`.

    `key` is the API key, or "". Raises CompletionError; OSError when the server cannot be reached.
    """
    body = json.dumps(request | {"stream": True, "stream_options": {"include_usage": True}})
    headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {})
    connection = http.client.HTTPConnection(*address)
    start = time.perf_counter()
    first = last = 0.0
    tokens = 0
    try:
        connection.request("POST", "/v1/completions", body, headers)
        response = connection.getresponse()
        if response.status != http.HTTPStatus.OK:
            raise CompletionError(_message(json.loads(response.read())))
        for line in response:
            data = line.removeprefix(b"data:").strip()
            if data == line.strip() or data == b"[DONE]":
                continue
            event = json.loads(data)
            if "error" in event:
                raise CompletionError(_message(event))
            for choice in event["choices"]:
                last = time.perf_counter()
                first = first or last
                write(choice["text"])
            tokens = (event.get("usage") or {}).get("completion_tokens", tokens)
    finally:
        connection.close()
    return Timing(tokens=tokens, ttft=first - start, tpot=(last - first) / max(tokens - 1, 1))


def _message(answer: dict[str, Any]) -> str:
    return str(answer["error"]["message"])
