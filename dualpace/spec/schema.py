"""The published JSON Schema of the spec, and what it says of single fields in words."""

import json
from collections.abc import Iterator
from functools import cache
from typing import Any

from dualpace.spec.models import Spec

FORMATS: dict[str | None, str] = {
    "size": "a size with its unit, such as 40GiB",
    "duration": "a duration with its unit, such as 250ms",
}

Fragment = dict[str, Any]
FieldPath = tuple[str, ...]


def schema_text() -> str:
    """The JSON Schema as the text of a file."""
    published = {"$schema": "https://json-schema.org/draft/2020-12/schema", **_schema()}
    return json.dumps(published, indent=2, ensure_ascii=False) + "\n"


def field(path: FieldPath) -> Fragment:
    """The schema of the field at `path`, of the whole spec for (). Raises KeyError."""
    fragment = _schema()
    for key in path:
        fragment = properties(fragment)[key]
    return fragment


def properties(fragment: Fragment) -> dict[str, Fragment]:
    """The fields that a value of `fragment` may have: none if it is not a mapping."""
    found: dict[str, Fragment] = {}
    for option in options(fragment):
        found |= option.get("properties", {})
    return found


def fields(section: FieldPath = ()) -> Iterator[FieldPath]:
    """Every field below `section`, sections before what is in them."""
    for name in properties(field(section)):
        yield (*section, name)
        yield from fields((*section, name))


def options(fragment: Fragment) -> list[Fragment]:
    """The alternatives of `fragment`, references followed, null left out."""
    if "anyOf" in fragment:
        return [each for option in fragment["anyOf"] for each in options(option)]
    if "$ref" in fragment:
        return options(_schema()["$defs"][fragment["$ref"].rpartition("/")[2]])
    return [] if fragment.get("type") == "null" else [fragment]


def choices(fragment: Fragment) -> list[str]:
    """The words and numbers that `fragment` lists one by one."""
    found: list[object] = []
    for option in options(fragment):
        found += option.get("enum", [option["const"]] if "const" in option else [])
    return [str(choice) for choice in found]


def expectation(fragment: Fragment) -> str:
    """What a value of `fragment` must be: "a whole number from 1 to 1024 or auto"."""
    kinds = [_kind(option, fragment) for option in options(fragment) if not choices(option)]
    listed = choices(fragment)
    if len(listed) > 1:
        kinds.append(f"one of {', '.join(listed)}")
    return " or ".join([*kinds, *listed] if len(listed) == 1 else kinds)


def _kind(option: Fragment, fragment: Fragment) -> str:
    match option["type"]:
        case "integer":
            low = option.get("minimum", option.get("exclusiveMinimum", -1) + 1)
            return f"a whole number from {low} to {option['maximum']}"
        case "number":
            return f"a number above 0 and at most {option['maximum']:g}"
        case "boolean":
            return "true or false"
        case "object":
            fields = option.get("required") or option["properties"]
            return f"a mapping with {', '.join(fields)}"
        case _:
            return FORMATS.get(option.get("format"), f"text like {fragment['examples'][0]}")


@cache
def _schema() -> Fragment:
    return Spec.model_json_schema()
