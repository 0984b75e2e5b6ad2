"""Work on requests that takes long: off the event loop, and little of it at a time."""

import asyncio
import json
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from fastapi.routing import APIRoute
from starlette.requests import Request
from starlette.responses import Response

T = TypeVar("T")

# What is parsed faster than it is handed to a thread and back, about.
SMALL_BYTES = 32768
_WORKERS = ThreadPoolExecutor(4, thread_name_prefix="aside")


async def aside(work: Callable[[], T]) -> T:
    """The result of `work`, done on one of a few threads in turn."""
    return await asyncio.get_running_loop().run_in_executor(_WORKERS, work)


class ParsingRoute(APIRoute):
    """Parses large bodies aside: each then holds up other requests for its own parsing at most, not a queue of them."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """The handler, given a request whose JSON is parsed aside."""
        handle = super().get_route_handler()

        async def parsing(request: Request) -> Response:
            return await handle(_ParsedAside(request.scope, request.receive))

        return parsing


class _ParsedAside(Request):
    async def json(self) -> Any:
        body = await self.body()
        return json.loads(body) if len(body) <= SMALL_BYTES else await aside(lambda: json.loads(body))
