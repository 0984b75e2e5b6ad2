"""Counts HTTP responses, whoever answered."""

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from dualpace.appliance.tally import REJECTED, RESPONSES, Tally

GENERATING = frozenset({"/v1/completions", "/v1/chat/completions"})


class Counted:
    """ASGI middleware: what it wraps is counted by status, and requests for completions that are refused."""

    def __init__(self, app: ASGIApp, tally: Tally) -> None:
        self._app = app
        self._tally = tally

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection scope."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def counting(message: Message) -> None:
            if message["type"] == "http.response.start":
                self._count(scope["path"], message["status"])
            await send(message)

        await self._app(scope, receive, counting)

    def _count(self, path: str, status: int) -> None:
        self._tally.add(RESPONSES, value=f"{status // 100}xx")
        if path in GENERATING and status >= 400:
            self._tally.add(REJECTED, value=str(status) if str(status) in REJECTED.values else "other")
