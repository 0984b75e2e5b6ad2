"""Requests from files: traces with arrival times (Mooncake, BurstGPT) and conversations (ShareGPT)."""

import csv
import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

from dualpace.bench.lengths import Request, WorkloadError

# Tokens that one of Mooncake's hash ids stands for; the last id of a prompt stands for what is left.
MOONCAKE_BLOCK = 512
CHARACTERS_PER_TOKEN = 4

Count = Callable[[str], int]

# What a line raises that is not as it should be.
_WRONG = (ValueError, LookupError, TypeError, AttributeError, OverflowError, RecursionError)


def read(path: Path, seed: int, count: Count) -> Iterator[Request]:
    """The requests of a file, whose format its content tells. Raises WorkloadError and OSError.

    ShareGPT's conversations come in an order that `seed` draws, over and over; `count` is the tokens of a text.
    """
    with path.open(encoding="utf-8-sig", errors="replace") as file:
        first = file.readline()
    if first.startswith("{") and "input_length" in first:
        return _mooncake(path)
    if "Request tokens" in first and "Timestamp" in first:
        return _burst_gpt(path)
    if first.lstrip().startswith("["):
        return _share_gpt(path, seed, count)
    raise WorkloadError(
        f"{path}: neither a Mooncake trace (lines with timestamp, input_length, output_length, hash_ids), nor a "
        "BurstGPT trace (CSV with Timestamp, Request tokens, Response tokens), nor ShareGPT conversations (a JSON list)"
    )


def _mooncake(path: Path) -> Iterator[Request]:
    """A JSON object a line; timestamps in milliseconds."""
    begin: float | None = None
    with path.open(encoding="utf-8-sig", errors="replace") as file:
        for place, line in enumerate(file, 1):
            try:
                row = json.loads(line)
                prompt, output, at = _sizes(row["input_length"], row["output_length"], row["timestamp"])
                at /= 1e3
                ids = list(map(int, row.get("hash_ids") or ()))
            except _WRONG as error:
                raise WorkloadError(f"{path}:{place}: not a line of a Mooncake trace: {error}") from error
            begin = at if begin is None else begin
            starts = range(0, prompt, MOONCAKE_BLOCK)
            blocks = tuple((key, min(MOONCAKE_BLOCK, prompt - start)) for key, start in zip(ids, starts, strict=False))
            if prompt and output:
                yield Request(prompt, output, blocks, at=at - begin)


def _burst_gpt(path: Path) -> Iterator[Request]:
    """CSV with a head, with or without sessions; timestamps in seconds. Without a response a request had failed."""
    begin: float | None = None
    with path.open(encoding="utf-8-sig", errors="replace", newline="") as file:
        for place, row in enumerate(_rows(path, csv.DictReader(file)), 2):
            try:
                prompt, output, at = _sizes(row["Request tokens"], row["Response tokens"], row["Timestamp"])
            except _WRONG as error:
                raise WorkloadError(f"{path}:{place}: not a line of a BurstGPT trace: {error}") from error
            begin = at if begin is None else begin
            if prompt and output:
                yield Request(prompt, output, at=at - begin)


def _rows(path: Path, table: "csv.DictReader[str]") -> Iterator[dict[str, Any]]:
    try:
        yield from table
    except csv.Error as error:
        raise WorkloadError(f"{path}:{table.line_num + 1}: not a line of a BurstGPT trace: {error}") from error


def _sizes(prompt: Any, output: Any, at: Any) -> tuple[int, int, float]:
    """Of a request, its tokens and its time. Raises one of `_WRONG`."""
    found = int(prompt), int(output), float(at)
    if min(found[:2]) < 0 or not math.isfinite(found[2]):
        raise ValueError("a number of tokens is below 0, or the time is none")
    return found


def _share_gpt(path: Path, seed: int, count: Count) -> Iterator[Request]:
    """The first question of each conversation, for as many tokens as its answer has."""
    try:
        found = [pair for each in json.loads(path.read_text(encoding="utf-8-sig")) if (pair := _first_turns(each))]
    except _WRONG as error:
        raise WorkloadError(f"{path}: not ShareGPT conversations: {error}") from error
    if not found:
        raise WorkloadError(f"{path}: no conversation has a question and an answer")
    Random(f"{seed} conversations").shuffle(found)
    return _over_and_over(found, count)


def _over_and_over(pairs: list[tuple[str, str]], count: Count) -> Iterator[Request]:
    while True:
        for question, answer in pairs:
            yield Request(max(count(question), 1), max(count(answer), 1), text=question)


def _first_turns(conversation: dict[str, Any]) -> tuple[str, str] | None:
    match conversation.get("conversations", conversation.get("conversation")):
        case [
            {"from": "human" | "user", "value": str(question)},
            {"from": "gpt" | "assistant", "value": str(answer)},
            *_,
        ]:
            return (question, answer) if question and answer else None
    return None


def counter(tokenizer: str | None) -> Count:
    """How many tokens a text has: by the tokenizer.json of that name, or else by its length. Raises WorkloadError."""
    if tokenizer is None:
        return lambda text: round(len(text) / CHARACTERS_PER_TOKEN)
    try:
        from tokenizers import Tokenizer
    except ImportError as error:
        raise WorkloadError("a tokenizer needs tokenizers: run `pip install 'dualpace[serve]'`") from error
    try:
        found = Tokenizer.from_file(tokenizer)
    except Exception as error:  # the library raises Exception itself
        raise WorkloadError(f"{tokenizer}: {error}") from error
    return lambda text: len(found.encode(text, add_special_tokens=False).ids)
