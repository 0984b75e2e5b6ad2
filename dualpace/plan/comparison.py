"""Two plans side by side: only what differs, with both values and, of numbers, their ratio."""

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from dualpace.plan.bar import BLOCKS, memory_bar
from dualpace.plan.plan import Floor, ForecastCell, Plan, RecallPace
from dualpace.plan.quantity import rate_text, size_text, time_text
from dualpace.plan.table import table

Value = str | int | float | bool | tuple[int, ...] | None

# Lists of things are compared thing by thing; these fields say which one it is.
_NAMED_BY = {
    "groups": ("name",),
    "pages": ("group",),
    "programs": ("kind", "tokens"),
    "floors": ("rows", "context"),
    "cells": ("rows", "context"),
    "recall": ("context",),
    "cooperation": ("context", "workers"),
}
# Longer text is shown by its ends.
WIDEST = 32
# What has a table of its own, and step programs: they are many, and follow from the batch and the chunk.
_APART = ("floors[", "forecast.cells[", "recall[", "cooperation[", "schedule.programs[")
_SIZES = ("memory", "host_budget", "max_body")


class Difference(NamedTuple):
    """A field of the plan, like `schedule.max_batch` or `pages[full].pages`; None stands where it is not there."""

    field: str
    a: Value
    b: Value

    @property
    def ratio(self) -> float | None:
        """The second over the first, of numbers."""
        match self.a, self.b:
            case (bool(), _) | (_, bool()):
                return None
            case (int() | float() as a, int() | float() as b) if a:
                return b / a
            case _:
                return None


def differences(a: Plan, b: Plan) -> tuple[Difference, ...]:
    """Where the two differ, in the order of a plan's fields."""
    ours, theirs = dict(_leaves(a.model_dump())), dict(_leaves(b.model_dump()))
    sections = list(Plan.model_fields)
    fields = sorted(ours | theirs, key=lambda field: sections.index(re.split(r"\W", field)[0]))
    return tuple(
        Difference(field, ours.get(field), theirs.get(field))
        for field in fields
        if ours.get(field) != theirs.get(field)
    )


def json_comparison(a: Plan, b: Plan, changes: Sequence[str] = ()) -> str:
    """Both plans and their differences. `changes` are what made `b` of `a`, if it was made so."""
    found = [{**each._asdict(), "ratio": each.ratio} for each in differences(a, b)]
    plans = {"a": a.model_dump(mode="json"), "b": b.model_dump(mode="json")}
    return json.dumps({"changes": list(changes), **plans, "differences": found}, indent=2) + "\n"


def text_comparison(a: Plan, b: Plan, labels: tuple[str, str], width: int = 100, glyphs: str = BLOCKS) -> str:
    """What differs, `labels` saying what the plans are."""
    found = differences(a, b)
    title = f"a: {labels[0]}\nb: {labels[1]}\n"
    if not found:
        return f"{title}\nthe plans are the same\n"
    sections: list[tuple[str, str]] = []
    if a.memory != b.memory or a.target.memory != b.target.memory:
        sections += [("memory of a", memory_bar(a, width, glyphs)), ("memory of b", memory_bar(b, width, glyphs))]
    fields = [each for each in found if not each.field.startswith(_APART)]
    sections.append(("fields", table(("", "a", "b", "b / a"), [_row(each) for each in fields]) if fields else ""))
    sections.append(("floor", _points(a.floors, b.floors)))
    sections.append(("forecast, an estimate", _points(a.forecast.cells, b.forecast.cells)))
    sections.append(("slow lane, with the hits needed", _paces(a.recall, b.recall)))
    return title + "".join(f"\n{name}\n{body}" for name, body in sections if body)


def _leaves(value: object, path: str = "") -> Iterator[tuple[str, Value]]:
    """Every field of a dumped plan with its value."""
    key = path.rpartition(".")[2]
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from _leaves(inner, f"{path}.{name}" if path else name)
    elif key in _NAMED_BY and isinstance(value, tuple):
        for thing in value:
            rest = {name: inner for name, inner in thing.items() if name not in _NAMED_BY[key]}
            yield from _leaves(rest, f"{path}[{' x '.join(str(thing[name]) for name in _NAMED_BY[key])}]")
    else:
        leaf: Any = value
        yield path, leaf


def _row(each: Difference) -> tuple[str, ...]:
    ratio = "" if each.ratio is None else _ratio_text(each.ratio)
    return each.field, _shown(each.field, each.a), _shown(each.field, each.b), ratio


def _ratio_text(ratio: float) -> str:
    return f"{ratio:.2f}" if 0.1 <= ratio < 100 else f"{ratio:.3g}"


def _shown(field: str, value: Value) -> str:
    key = field.rpartition(".")[2]
    match value:
        case None:
            return "-"
        case bool() | str():
            text = str(value) or "none"
            return text if len(text) <= WIDEST else f"{text[: WIDEST // 2 - 1]}...{text[2 - WIDEST // 2 :]}"
        case tuple():
            return f"{len(value)} {key}"
        case _ if field.startswith("memory.") or key.endswith("bytes") or key in _SIZES:
            return size_text(value)
        case _ if key in ("drain", "park_after"):
            return time_text(value)
        case float():
            return f"{value:.4g}"
        case _:
            return f"{value:,}"


def _points(ours: Sequence[Floor | ForecastCell], theirs: Sequence[Floor | ForecastCell]) -> str:
    """The operating points whose times differ, of two sets of the same kind."""
    a, b = ({(p.context, p.rows): (p.seconds, p.ttft_seconds) for p in points} for points in (ours, theirs))
    rows = [
        (str(key[1]), f"{key[0]:,}", *_times(before[0], after[0]), *_times(before[1], after[1]))
        for key in sorted(a.keys() | b.keys())
        for before, after in [(a.get(key, (None, None)), b.get(key, (None, None)))]
        if before != after
    ]
    heading = ("rows", "context", "TPOT a", "TPOT b", "b / a", "TTFT a", "TTFT b", "b / a")
    return table(heading, rows) if rows else ""


def _paces(ours: Sequence[RecallPace], theirs: Sequence[RecallPace]) -> str:
    """The slow lane at the contexts where it differs."""
    a, b = ({pace.context: pace for pace in paces} for paces in (ours, theirs))
    rows = []
    for context in sorted(a.keys() | b.keys()):
        before, after = a.get(context), b.get(context)
        if before != after:
            shown = [
                ("-", "-", "-")
                if pace is None
                else (str(pace.rows), f"{pace.least_hits:.0%}", rate_text(pace.tokens_per_second))
                for pace in (before, after)
            ]
            ratio = _ratio_text(after.tokens_per_second / before.tokens_per_second) if before and after else "-"
            rows.append((f"{context:,}", *(text for pair in zip(*shown, strict=True) for text in pair), ratio))
    heading = ("context", "rows a", "rows b", "hits a", "hits b", "tokens/s a", "tokens/s b", "b / a")
    return table(heading, rows) if rows else ""


def _times(a: float | None, b: float | None) -> tuple[str, str, str]:
    shown = ["-" if seconds is None else time_text(seconds) for seconds in (a, b)]
    return shown[0], shown[1], _ratio_text(b / a) if a and b else "-"
