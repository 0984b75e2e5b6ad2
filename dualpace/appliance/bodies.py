"""Bodies of requests: read, checked against their models, and handed to their endpoints.

FastAPI describes these routes and does not serve them: of what it does for a request, nothing would be left to do.
"""

import asyncio
import inspect
import json
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, NoReturn

from fastapi.routing import APIRoute
from pydantic import BaseModel, ValidationError
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute
from starlette.types import ASGIApp, Receive, Scope, Send

from dualpace.appliance.errors import ApiError, from_validation, invalid
from dualpace.appliance.pace import clock

# Key of a request's scope: when its body had come, in seconds of `pace.clock`.
ARRIVED = "dualpace.arrived"
# What is parsed faster than it is handed to a thread and back, about.
SMALL_BYTES = 32768
# Of an object in a body: no field takes so many, and whoever checks one finds fault with each that is unknown.
MOST_NAMES = 1000
# Texts, lists and objects of a body together. Each is hundreds of bytes in memory, whatever it is in the body, and to
# make millions of them keeps the interpreter for seconds.
MOST_PARTS = 100_000
# Parsing keeps the interpreter to itself: of several at once, the event loop would have to wait for all.
_PARSER = ThreadPoolExecutor(1, thread_name_prefix="aside parser")


@dataclass(frozen=True)
class _Endpoint:
    model: Any  # a type of BaseModel
    answer: Callable[..., Awaitable[Response]]
    takes_request: bool


def endpoints(routes: Iterable[BaseRoute]) -> dict[str, _Endpoint]:
    """What answers requests with a body, by path."""
    return {
        route.path: _Endpoint(
            model=route.body_field.field_info.annotation,
            answer=route.endpoint,
            takes_request="request" in inspect.signature(route.endpoint).parameters,
        )
        for route in routes
        if isinstance(route, APIRoute) and route.body_field
    }


class Bodies:
    """ASGI middleware, within all others. Answers POST at the paths of `served`, which come with a whole body."""

    def __init__(
        self, app: ASGIApp, served: dict[str, _Endpoint], refusal: Callable[[Scope, ApiError], Response]
    ) -> None:
        """`refusal` words an error."""
        self._app = app
        self._served = served
        self._refusal = refusal

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection scope."""
        endpoint = self._served.get(scope["path"]) if scope["type"] == "http" and scope["method"] == "POST" else None
        if endpoint is None:
            await self._app(scope, receive, send)
            return
        try:
            body = (await receive())["body"]
            scope[ARRIVED] = clock()
            with_request = {"request": Request(scope)} if endpoint.takes_request else {}
            fields = await _checked(endpoint.model, body)
            response = await endpoint.answer(body=fields, **with_request)
            await response(scope, receive, send)
        except ApiError as error:  # an answer that has begun raises none
            await self._refusal(scope, error)(scope, receive, send)


async def _checked(model: type[BaseModel], body: bytes) -> BaseModel:
    """The body as a `model`; a large one is read aside, one after the other. Raises ApiError."""
    if len(body) <= SMALL_BYTES:
        return _read(model, body)
    return await asyncio.get_running_loop().run_in_executor(_PARSER, _read, model, body)


def _read(model: type[BaseModel], body: bytes) -> BaseModel:
    if len(body) > MOST_PARTS:
        _check_parts(body)
    try:
        fields = _DECODER.decode(body.decode())
    except UnicodeDecodeError as error:
        raise invalid(f"The request body is not valid JSON: it is no UTF-8 at byte {error.start}.") from error
    except json.JSONDecodeError as error:
        raise invalid(f"The request body is not valid JSON: {error.msg} at character {error.pos}.") from error
    except (ValueError, RecursionError) as error:
        raise invalid("The request body has a number of too many digits, or lists and objects too deep.") from error
    try:
        return model.model_validate(fields)
    except ValidationError as error:
        raise from_validation(error.errors(include_url=False, include_input=False)) from error


def _check_parts(body: bytes) -> None:
    """Refuse a body of too many parts, by its bytes alone."""
    plain = body.replace(b"\\\\", b"").replace(b'\\"', b"")
    texts = plain.count(b'"') // 2
    others = plain.count(b"[") + plain.count(b"{")
    if texts <= MOST_PARTS < texts + others:
        # Brackets in texts are none.
        outside = b"".join(plain.split(b'"')[::2])
        others = outside.count(b"[") + outside.count(b"{")
    if texts + others > MOST_PARTS:
        raise invalid(
            f"The request body has {texts + others} texts, lists and objects, at most {MOST_PARTS} are possible."
        )


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(pairs) > MOST_NAMES:
        raise invalid(f"The request body has an object of {len(pairs)} names, at most {MOST_NAMES} are possible.")
    names = dict(pairs)
    if len(names) < len(pairs):
        [(twice, _)] = Counter(name for name, _ in pairs).most_common(1)
        shown = twice[:64].encode("ascii", "backslashreplace").decode()
        raise invalid(f"The request body has the name '{shown}' twice in an object: which one counts is not clear.")
    return names


def _no_number(name: str) -> NoReturn:
    raise invalid(f"The request body is not valid JSON: {name} is no number there.")


_DECODER = json.JSONDecoder(object_pairs_hook=_object, parse_constant=_no_number)
