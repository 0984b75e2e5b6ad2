"""Lengths of prompts and answers, drawn from distributions by name, and the requests that have them."""

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import NamedTuple


class WorkloadError(Exception):
    """A workload that is not understood or cannot be read; the message says what and how to write it."""


class Request(NamedTuple):
    """`prompt` and `output` tokens, the first of them those of `blocks`; or a prompt that is the text `text`.

    A block (key, tokens) is the same tokens in every request that has its key. `at`: seconds from the start of a trace.
    """

    prompt: int
    output: int
    blocks: tuple[tuple[int, int], ...] = ()
    text: str | None = None
    at: float | None = None


Draw = Callable[[Random, list[int]], Request]

CHAT_SPREAD = 0.8  # sigma of the logarithm
LONG_SHARE = 0.25
LONG_FACTOR = 8
ZIPF_EXPONENT = 1.2
ZIPF_SHORTEST = 16
PREFIXES = 16
# Draws in a row that may be too long for the server before the workload counts as one that does not fit.
PATIENCE = 10_000


def _log_normal(dice: Random, mean: float) -> int:
    return max(1, round(dice.lognormvariate(math.log(mean) - CHAT_SPREAD**2 / 2, CHAT_SPREAD)))


def _chat(dice: Random, means: list[int]) -> Request:
    return Request(_log_normal(dice, means[0]), _log_normal(dice, means[1]))


def _bimodal(dice: Random, means: list[int]) -> Request:
    factor = LONG_FACTOR if dice.random() < LONG_SHARE else 1
    return Request(_log_normal(dice, means[0] * factor), _log_normal(dice, means[1]))


def _zipf(dice: Random, means: list[int]) -> Request:
    # The inverse of the continuous distribution's tail, cut at the longest.
    tail = 1 - ZIPF_EXPONENT
    low, high = ZIPF_SHORTEST**tail, max(means[0], ZIPF_SHORTEST + 1) ** tail
    length = (low + (high - low) * dice.random()) ** (1 / tail)
    return Request(round(length), _log_normal(dice, means[1]))


def _long(dice: Random, means: list[int]) -> Request:
    return Request(dice.randint(max(means[0] // 2, 1), means[0] * 3 // 2), _log_normal(dice, means[1]))


def _shared_prefix(dice: Random, means: list[int]) -> Request:
    prefix = (dice.randrange(PREFIXES), means[2])
    return Request(means[2] + _log_normal(dice, means[0]), _log_normal(dice, means[1]), (prefix,))


def _fixed(dice: Random, means: list[int]) -> Request:
    return Request(means[0], means[1])


class _Distribution(NamedTuple):
    draw: Draw
    names: str
    defaults: tuple[int, ...]


DISTRIBUTIONS = {
    "chat": _Distribution(_chat, "IN,OUT", (220, 200)),
    "bimodal": _Distribution(_bimodal, "IN,OUT", (512, 200)),
    "zipf": _Distribution(_zipf, "MOST,OUT", (8192, 200)),
    "long": _Distribution(_long, "IN,OUT", (32_768, 256)),
    "shared-prefix": _Distribution(_shared_prefix, "IN,OUT,PREFIX", (220, 200, 2048)),
    "fixed": _Distribution(_fixed, "IN,OUT", (1024, 128)),
}


def names() -> str:
    """The distributions with their parameters, as a user writes them."""
    return ", ".join(f"{name}[:{found.names}]" for name, found in DISTRIBUTIONS.items())


def is_distribution(workload: str) -> bool:
    """Whether it is the name of one, with parameters or without."""
    return workload.partition(":")[0] in DISTRIBUTIONS


def drawn(workload: str, seed: int, max_context: int | None) -> Iterator[Request]:
    """Requests without end by `workload`, such as `chat` or `fixed:1024,128`, none longer than `max_context` in all.

    Raises WorkloadError.
    """
    name, _, text = workload.partition(":")
    draw, parameters, defaults = DISTRIBUTIONS[name]
    try:
        given = [int(number) for number in text.split(",")] if text else []
    except ValueError:
        given = [0]
    if len(given) > len(defaults) or any(number < 1 for number in given):
        raise WorkloadError(f"{workload!r} is not understood: write it like {name}:{','.join(map(str, defaults))} "
                            f"for {parameters}, in tokens")  # fmt: skip
    return _fitting(workload, draw, [*given, *defaults[len(given) :]], Random(f"{seed} lengths"), max_context)


def _fitting(workload: str, draw: Draw, means: list[int], dice: Random, max_context: int | None) -> Iterator[Request]:
    refused = 0
    while refused < PATIENCE:
        request = draw(dice, means)
        if max_context is None or request.prompt + request.output <= max_context:
            refused = 0
            yield request
        else:
            refused += 1
    raise WorkloadError(f"{workload!r} has no requests of at most {max_context} tokens, the server's context")


def check(workload: str) -> None:
    """Raises WorkloadError unless `workload` is a distribution that can be drawn from, or a file."""
    if is_distribution(workload):
        drawn(workload, 0, None)
    elif not Path(workload).is_file():
        raise WorkloadError(f"workload {workload!r} is no file and none of {names()}")
