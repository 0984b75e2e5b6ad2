"""What is checked before a request is parsed: API key, content type, size of the body."""

import asyncio
from collections.abc import Collection
from contextlib import nullcontext

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from dualpace.appliance.errors import ApiError, invalid
from dualpace.appliance.keys import ACCOUNT, Account, Keys

HEALTH = "/health"
# From the headers of a request to the end of its body.
BODY_S = 60.0


class Limits:
    """ASGI middleware. Hands a body on whole, once it is known to be JSON by its type and at most `max_body` bytes.

    Bodies are for the `paths` that take one. A request that needs a key has its account in its scope, and is counted
    there while it is answered.
    """

    def __init__(self, app: ASGIApp, keys: Keys, max_body: int, paths: Collection[str]) -> None:
        self._app = app
        self._paths = paths
        self._keys = keys
        self._max_body = max_body

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection scope."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        try:
            account = scope[ACCOUNT] = self._account(scope)
            if scope["method"] != "POST" or scope["path"] not in self._paths:
                await self._app(scope, receive, send)
                return
            with account.request() if account else nullcontext():
                _check_content_type(Headers(scope=scope))
                body = await self._body(scope, receive)
                if body is not None:
                    await self._app(scope, _replay(body, receive), send)
        except ApiError as error:
            await error.response()(scope, receive, send)

    def _account(self, scope: Scope) -> Account | None:
        """Whose the request is; None if that needs no key."""
        if not self._keys or scope["path"] == HEALTH or scope["path"].startswith(f"{HEALTH}/"):
            return None
        scheme, _, given = Headers(scope=scope).get("authorization", "").partition(" ")
        account = self._keys.account(given.strip().encode("latin-1"))
        if scheme.lower() == "bearer" and account:
            return account
        raise ApiError(
            401,
            "A valid API key is needed: send it as 'Authorization: Bearer KEY'.",
            kind="authentication_error",
            code="invalid_api_key",
        )

    async def _body(self, scope: Scope, receive: Receive) -> bytes | None:
        """The whole body; None if the client left before its end."""
        declared = Headers(scope=scope).get("content-length", "")
        if declared.isdigit() and int(declared) > self._max_body:
            raise self._too_large()
        body = bytearray()
        more = True
        try:
            async with asyncio.timeout(BODY_S):
                while more:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        return None
                    body += message.get("body", b"")
                    more = message.get("more_body", False)
                    if len(body) > self._max_body:
                        raise self._too_large()
        except TimeoutError as error:
            raise ApiError(408, f"The request body took longer than {BODY_S:g} s, the limit of this server.") from error
        return bytes(body)

    def _too_large(self) -> ApiError:
        return ApiError(413, f"The request body is larger than {self._max_body} bytes, the limit of this server.")


def _replay(body: bytes, receive: Receive) -> Receive:
    """Receives `body` and then what comes after it."""
    pending: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replay() -> Message:
        return pending.pop() if pending else await receive()

    return replay


def _check_content_type(headers: Headers) -> None:
    given = headers.get("content-type", "")
    if given.partition(";")[0].strip().lower() != "application/json":
        raise ApiError(415, f"The content type must be application/json, not {given or 'missing'}.")
    if headers.get("content-encoding", "identity").lower() != "identity":
        raise invalid("Compressed request bodies are not served; leave out the header Content-Encoding.")
