"""What is checked before a request is parsed: API key, content type, size of the body."""

import asyncio
from collections.abc import Collection
from contextlib import nullcontext, suppress

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from dualpace.appliance.errors import ApiError, invalid, too_large, too_slow, unavailable
from dualpace.appliance.keys import ACCOUNT, Account, Keys, key_in
from dualpace.appliance.log import Log, report_of

HEALTH = "/health"
# A browser asks for a password and sends it with all that the page asks for.
PAGE = "/"
# From the headers of a request to the end of its body.
BODY_S = 60.0
# Beyond this many requests, those for /health aside, all are refused.
REQUESTS = 4096
# Bodies of the largest size that are held at once, from their first byte to the end of the answer.
BODIES = 256
# For how long, and up to how many times the limit, the body of a refused request is read and dropped: many clients read
# no answer before they have sent all.
DISCARD_S = 2.0
DISCARD_BODIES = 8


class Limits:
    """ASGI middleware. Hands a body on whole, once it is known to be JSON by its type and at most `max_body` bytes.

    Bodies are for the `paths` that take one. A request that needs a key has its account in its scope, and is counted
    there while it is answered.
    """

    def __init__(self, app: ASGIApp, keys: Keys, max_body: int, paths: Collection[str], log: Log) -> None:
        """With `log` as `prompts`, the log has bodies."""
        self._app = app
        self._paths = paths
        self._keys = keys
        self._max_body = max_body
        self._logs_bodies = log == "prompts"
        self._under_way = 0
        self._held_bytes = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection scope."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        if is_health(scope):
            await self._app(scope, receive, send)
            return
        self._under_way += 1
        incoming = _Incoming(receive)
        try:
            await self._serve(scope, incoming, send)
        except ApiError as error:
            report_of(scope)["error"] = error.message
            response = error.response()
            if error.status == 401 and scope["path"] == PAGE:
                response.headers["WWW-Authenticate"] = 'Basic realm="DualPace"'
            if not await self._discard(incoming, scope):
                response.headers["Connection"] = "close"
            await response(scope, receive, send)
        finally:
            self._under_way -= 1
            self._held_bytes -= incoming.held_bytes

    async def _serve(self, scope: Scope, receive: "_Incoming", send: Send) -> None:
        if self._under_way > REQUESTS:
            raise unavailable(f"more than {REQUESTS} requests are under way, the limit of a frontend")
        account = scope[ACCOUNT] = self._account(scope)
        if scope["method"] != "POST" or scope["path"] not in self._paths:
            await self._app(scope, receive, send)
            return
        with account.request() if account else nullcontext():
            _check_content_type(Headers(scope=scope))
            body = await self._body(scope, receive)
            if body is not None and self._logs_bodies:
                report_of(scope)["body"] = body.decode(errors="replace")
            if body is not None:
                await self._app(scope, _replay(body, receive), send)

    def _account(self, scope: Scope) -> Account | None:
        """Whose the request is; None if none needs a key."""
        if not self._keys:
            return None
        account = self._keys.account(key_in(Headers(scope=scope).get("authorization", "")))
        if account:
            return account
        raise ApiError(
            401,
            "A valid API key is needed: send it as 'Authorization: Bearer KEY'.",
            kind="authentication_error",
            code="invalid_api_key",
        )

    async def _body(self, scope: Scope, receive: "_Incoming") -> bytes | None:
        """The whole body; None if the client left before its end."""
        declared = Headers(scope=scope).get("content-length", "")
        if declared.isdigit() and int(declared) > self._max_body:
            raise too_large(413, "body", self._max_body)
        body = bytearray()
        more = True
        try:
            async with asyncio.timeout(BODY_S):
                while more:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        return None
                    self._hold(receive, body, message.get("body", b""))
                    more = message.get("more_body", False)
        except TimeoutError as error:
            raise too_slow("body", BODY_S) from error
        return bytes(body)

    def _hold(self, incoming: "_Incoming", body: bytearray, piece: bytes) -> None:
        body += piece
        incoming.held_bytes += len(piece)
        self._held_bytes += len(piece)
        if len(body) > self._max_body:
            raise too_large(413, "body", self._max_body)
        if self._held_bytes > BODIES * self._max_body:
            raise unavailable(
                f"requests of more than {BODIES} times {self._max_body} bytes are under way, the limit of a frontend"
            )

    async def _discard(self, incoming: "_Incoming", scope: Scope) -> bool:
        """Read the rest of a body and drop it; False if it has not come to its end."""
        if not incoming.asked and "expect" in Headers(scope=scope):
            return False  # the client sends none before it is told to
        left = DISCARD_BODIES * self._max_body
        with suppress(TimeoutError):
            async with asyncio.timeout(DISCARD_S):
                while left > 0 and not incoming.whole:
                    left -= len((await incoming()).get("body", b""))
        return incoming.whole


class _Incoming:
    """Receives a request, and knows whether it has come to its end and how much of its body is held."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self.asked = self.whole = False
        self.held_bytes = 0

    async def __call__(self) -> Message:
        self.asked = True
        message = await self._receive()
        self.whole = self.whole or not message.get("more_body", False)
        return message


def is_health(scope: Scope) -> bool:
    """Whether a request is a probe, which needs no key and is never too much."""
    return bool(scope["path"] == HEALTH or scope["path"].startswith(f"{HEALTH}/"))


def _replay(body: bytes, receive: Receive) -> Receive:
    """Receives `body` and then what comes after it."""
    pending: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replay() -> Message:
        return pending.pop() if pending else await receive()

    return replay


def _check_content_type(headers: Headers) -> None:
    given = headers.get("content-type", "")
    if given.partition(";")[0].strip().lower() != "application/json":
        message = f"The content type must be application/json, not {given or 'missing'}."
        raise ApiError(415, message, code="unsupported_media_type")
    if headers.get("content-encoding", "identity").lower() != "identity":
        raise invalid("Compressed request bodies are not served; leave out the header Content-Encoding.")
