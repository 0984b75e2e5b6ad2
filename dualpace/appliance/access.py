"""Every request has an id, which its answer carries, and a line in the log; answers are counted, whoever gave them."""

import logging
import re
import secrets
import time

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from dualpace.appliance.errors import CLIENT_GONE, failed
from dualpace.appliance.keys import ACCOUNT, Account
from dualpace.appliance.limits import is_health
from dualpace.appliance.log import Log, event, report_of
from dualpace.appliance.tally import REJECTED, RESPONSES, Tally

HEADER = b"x-request-id"
GENERATING = frozenset({"/v1/completions", "/v1/chat/completions"})
_ID = re.compile(rb"[!-~]{1,128}")
_LONGEST = 256

logger = logging.getLogger(__name__)


class Access:
    """ASGI middleware, around all others. Who only watches is never logged, and of the rest what `log` says.

    What nobody foresaw is logged, not shown, and answered here: above, the answer would have no id and count as none.
    """

    def __init__(self, app: ASGIApp, log: Log, tally: Tally) -> None:
        self._app = app
        self._tally = tally
        self._of_errors = log == "errors"
        self._well: set[str] = set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection scope."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = next((value for name, value in scope["headers"] if name == HEADER), b"")
        # Another's id is taken over if it is one that any log and header can hold.
        own = given if _ID.fullmatch(given) else f"req-{secrets.token_hex(12)}".encode()
        started = time.monotonic()
        status = CLIENT_GONE  # until there is an answer, the client may leave

        async def sending(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                self._count(scope["path"], status)
                message = {**message, "headers": [*message.get("headers", ()), (HEADER, own)]}
            await send(message)

        try:
            await self._app(scope, receive, sending)
        except Exception:
            logger.exception("a request failed")
            error = failed("an internal error")
            report_of(scope)["error"] = error.message
            if status != CLIENT_GONE:
                raise  # its headers are out: the server breaks the answer off
            await error.response()(scope, receive, sending)
        finally:
            # After its headers an answer may fail too.
            has_failed = status >= 500 or (status < 400 and "error" in report_of(scope))
            told_before = is_health(scope) and not self._is_news(scope["path"], status)
            if not told_before and (has_failed or not (self._of_errors or (_is_watching(scope) and status == 200))):
                _log(scope, own, status, time.monotonic() - started)

    def _is_news(self, probe: str, status: int) -> bool:
        """No: a 503 that follows no 200. Before the first a model loads, and later ones say what one has said."""
        was_well = probe in self._well
        if status == 200:
            self._well.add(probe)
        elif status == 503:
            self._well.discard(probe)
            return was_well
        return True

    def _count(self, path: str, status: int) -> None:
        if status == CLIENT_GONE:  # nobody is answered
            return
        self._tally.add(RESPONSES, value=f"{status // 100}xx")
        if path in GENERATING and status >= 400:
            self._tally.add(REJECTED, value=str(status) if str(status) in REJECTED.values else "other")


def _is_watching(scope: Scope) -> bool:
    """Whether a request is one of many alike: a probe, or for metrics, which the status page asks for each second."""
    return is_health(scope) or scope["path"] == "/metrics"


def _log(scope: Scope, own: bytes, status: int, seconds: float) -> None:
    account: Account | None = scope.get(ACCOUNT)
    client = scope.get("client")
    fields = {
        "request_id": own.decode(),
        "client": client[0] if client else None,
        "key": account.name if account else None,
        "method": scope["method"],
        "path": scope["path"],
        "status": status,
        "seconds": round(seconds, 4),
        **report_of(scope),
    }
    for name in ("path", "error", "user"):  # which clients make up
        fields[name] = fields[name][:_LONGEST] if name in fields else None
    event(logger, logging.INFO, "request", {name: value for name, value in fields.items() if value is not None})
