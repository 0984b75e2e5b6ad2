"""Sizes and durations as typed strings: `40GiB`, `40GB`, `250ms`; a bare number is refused."""

import re
from collections.abc import Mapping
from typing import Annotated

from pydantic import BeforeValidator, WithJsonSchema

SIZE_UNITS = {
    "B": 1,
    "kB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12,
    "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40,
}  # fmt: skip
DURATION_UNITS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0}

_NUMBER = "([0-9]{1,9}(?:[.][0-9]{1,9})?)"
SIZE_PATTERN = f"^{_NUMBER} ?({'|'.join(SIZE_UNITS)})$"
DURATION_PATTERN = f"^{_NUMBER} ?({'|'.join(DURATION_UNITS)})$"


def _quantity(text: object, pattern: str, units: Mapping[str, float], example: str) -> float:
    if not isinstance(text, str):
        raise ValueError(f"{text!r} needs a unit: write it like {example}")
    match = re.fullmatch(pattern, text)
    if match is None:
        raise ValueError(f"{text!r} is not understood: write it like {example}; units are {', '.join(units)}")
    return float(match[1]) * units[match[2]]


def parse_size(text: object) -> int:
    """`40GiB` to bytes, at least one. Raises ValueError with the remedy."""
    size = round(_quantity(text, SIZE_PATTERN, SIZE_UNITS, "40GiB or 40GB"))
    if size == 0:
        raise ValueError(f"{text!r} is less than a byte")
    return size


def parse_duration(text: object) -> float:
    """`250ms` to seconds. Raises ValueError with the remedy."""
    return _quantity(text, DURATION_PATTERN, DURATION_UNITS, "250ms or 30s")


Size = Annotated[
    int,
    BeforeValidator(parse_size),
    WithJsonSchema({"type": "string", "format": "size", "pattern": SIZE_PATTERN}),
]
Duration = Annotated[
    float,
    BeforeValidator(parse_duration),
    WithJsonSchema({"type": "string", "format": "duration", "pattern": DURATION_PATTERN}),
]
