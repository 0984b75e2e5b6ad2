"""Work on texts that takes long: off the event loop, and little of it at a time."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")

# What is tokenised faster than it is handed to a thread and back, about, in characters.
SMALL_TEXT = 512
_WORKERS = ThreadPoolExecutor(4, thread_name_prefix="aside")


async def aside(work: Callable[[], T], characters: int) -> T:
    """The result of `work` on a text, done by one of a few threads. For what leaves the interpreter to others."""
    if characters <= SMALL_TEXT:
        return work()
    return await asyncio.get_running_loop().run_in_executor(_WORKERS, work)
