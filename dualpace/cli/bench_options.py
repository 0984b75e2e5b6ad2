"""Options of `bench` that are written in a language of their own."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from dualpace.cli.terminal import fail

if TYPE_CHECKING:
    from dualpace.bench.load import Limits

Number = TypeVar("Number", int, float)


def numbers_of(option: str, text: str, kind: Callable[[str], Number]) -> list[Number]:
    """`1,2,4`, all above 0; none if it is empty."""
    try:
        found = [kind(part) for part in text.split(",")] if text else []
    except ValueError:
        found = [kind("0")]
    if any(not 0 < number < 1e9 for number in found):
        fail(f"{option} {text} is not understood: write a number above 0, or several like 1,2,4")
    return found


def seconds_of(option: str, text: str) -> float:
    """`60s` as seconds."""
    from dualpace.spec.units import parse_duration

    try:
        return parse_duration(text)
    except ValueError as error:
        fail(f"{option} {error}")


def limits_of(text: str) -> Limits:
    """`ttft=500ms,tpot=50ms` as limits."""
    from dualpace.bench.load import Limits

    found = {}
    for part in filter(None, text.split(",")):
        name, _, limit = part.partition("=")
        if name not in Limits.model_fields:
            fail(f"--slo {part} is not understood: write it like ttft=500ms,tpot=50ms,e2e=10s")
        found[name] = seconds_of(f"--slo {name}=", limit)
        if not found[name]:
            fail(f"--slo {part}: a limit is above 0")
    return Limits(**found)


def body_of(text: str) -> dict[str, Any]:
    """A JSON object."""
    try:
        found = json.loads(text)
    except ValueError as error:
        fail(f"--body is no JSON: {error}")
    if not isinstance(found, dict):
        fail("--body is no JSON object: write it like '{\"temperature\": 0}'")
    return found


def ids_of(text: str) -> tuple[int, int]:
    """`1000:31000`, the second not included."""
    match = re.fullmatch("([0-9]{1,9}):([0-9]{1,9})", text)
    if not match or int(match[1]) >= int(match[2]):
        fail(f"--ids {text} is not understood: write it like 1000:31000, the lower end first")
    return int(match[1]), int(match[2])


def cpus_of(option: str, text: str) -> tuple[int, ...]:
    """`0-3,8` as numbers."""
    found: set[int] = set()
    for part in filter(None, text.split(",")):
        match = re.fullmatch("([0-9]{1,4})(?:-([0-9]{1,4}))?", part)
        if not match:
            fail(f"{option} {text} is not understood: write it like 0-3,8")
        found |= set(range(int(match[1]), int(match[2] or match[1]) + 1))
    return tuple(sorted(found))
