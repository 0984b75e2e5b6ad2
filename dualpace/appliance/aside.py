"""Work on requests that takes long: off the event loop, and little of it at a time."""

import asyncio
import inspect
import json
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from fastapi.routing import APIRoute
from pydantic import ValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match
from starlette.types import Receive, Scope, Send

from dualpace.appliance.errors import ApiError, from_validation, invalid
from dualpace.appliance.pace import clock

T = TypeVar("T")

# Key of a request's scope: when its body had come, in seconds of `pace.clock`.
ARRIVED = "dualpace.arrived"
# What is parsed faster than it is handed to a thread and back, about.
SMALL_BYTES = 32768
# What is tokenised so fast, in characters.
SMALL_TEXT = 512
# Of an object in a body: no field takes so many, and whoever checks one finds fault with each that is unknown.
MOST_NAMES = 1000
_WORKERS = ThreadPoolExecutor(4, thread_name_prefix="aside")
# Parsing keeps the interpreter to itself: of several at once, the event loop would have to wait for all.
_PARSER = ThreadPoolExecutor(1, thread_name_prefix="aside parser")


async def aside(work: Callable[[], T], characters: int) -> T:
    """The result of `work` on a text, done by one of a few threads. For what leaves the interpreter to others."""
    if characters <= SMALL_TEXT:
        return work()
    return await asyncio.get_running_loop().run_in_executor(_WORKERS, work)


class ParsingRoute(APIRoute):
    """Parses and checks large bodies aside, one after the other, so that requests beside them wait for one at most.

    HEAD is answered as GET is; the server leaves the body out.
    """

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """Whether the route is for this request."""
        return super().matches(_as_get(scope))

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer the request."""
        await super().handle(_as_get(scope), receive, send)

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """The handler, given a request that has been parsed."""
        handle = super().get_route_handler()
        model = self.body_field.field_info.annotation if self.body_field else None
        signature = inspect.signature(self.endpoint)
        answers, takes_request = signature.return_annotation is Response, "request" in signature.parameters

        async def parsing(request: Request) -> Response:
            request = _Parsed(model, request)
            # An endpoint that makes its answer itself needs nothing of FastAPI but the body. What is wrong with one is
            # left to FastAPI to tell.
            if model and answers and (body := await request.body_at_once()):
                with_request = {"request": request} if takes_request else {}
                response: Response = await self.endpoint(body=body, **with_request)
                return response
            try:
                return await handle(request)
            except HTTPException as error:
                # What keeps a body from being read, FastAPI tells in its own words.
                if isinstance(error.__cause__, ApiError):
                    raise error.__cause__ from None
                raise

        return parsing


def _as_get(scope: Scope) -> Scope:
    return {**scope, "method": "GET"} if scope.get("method") == "HEAD" else scope


class _Parsed(Request):
    def __init__(self, model: Any, request: Request) -> None:
        super().__init__(request.scope, request.receive)
        self._model = model

    async def body_at_once(self) -> Any:
        """The body of a small request; None if it is not small, or not as it should be."""
        body = await self.body()
        if len(body) > SMALL_BYTES:
            return None
        self.scope[ARRIVED] = clock()
        try:
            return self._model.model_validate_json(body)
        except ValidationError:
            return None

    async def json(self) -> Any:
        body = await self.body()
        self.scope[ARRIVED] = clock()
        if len(body) <= SMALL_BYTES:
            return _loads(body)
        return await asyncio.get_running_loop().run_in_executor(_PARSER, self._parse, body)

    def _parse(self, body: bytes) -> Any:
        fields = _loads(body)
        try:
            return self._model.model_validate(fields)
        except ValidationError as error:
            # Found again by the route, it would take as long once more, and hold up all other requests.
            found = error.errors(include_url=False, include_input=False)
            raise from_validation([{**one, "loc": ("body", *one["loc"])} for one in found]) from error


def _loads(body: bytes) -> Any:
    """The value of `body`. Raises JSONDecodeError where that says all, or else ApiError."""
    try:
        return json.loads(body, object_hook=_small)
    except json.JSONDecodeError:
        raise
    except UnicodeDecodeError as error:
        raise invalid(f"The request body is not valid JSON: it is no UTF-8 at byte {error.start}.") from error
    except (ValueError, RecursionError) as error:
        raise invalid("The request body has a number of too many digits, or lists and objects too deep.") from error


def _small(names: dict[str, Any]) -> dict[str, Any]:
    if len(names) > MOST_NAMES:
        raise invalid(f"The request body has an object of {len(names)} names, at most {MOST_NAMES} are possible.")
    return names
