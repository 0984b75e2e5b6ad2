"""The published schema describes every field."""

from collections.abc import Iterator

import pytest

from dualpace.spec import schema


def fields(path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for name in schema.properties(schema.field(path)):
        yield (*path, name)
        yield from fields((*path, name))


@pytest.mark.parametrize("path", list(fields()), ids=".".join)
def test_field_is_described_and_exemplified(path: tuple[str, ...]) -> None:
    field = schema.field(path)
    section = all("properties" in option for option in schema.options(field))
    assert field.get("description") or (section and schema.options(field)[0]["description"])
    assert section or field["examples"]
    assert schema.expectation(field)


@pytest.mark.parametrize(
    ("path", "words"),
    [
        (("attention", "gqa_ratio"), "a whole number from 1 to 1024 or auto"),
        (("target", "memory_fraction"), "a number above 0 and at most 1"),
        (("target", "kv_budget"), "a size with its unit, such as 40GiB or auto"),
        (("serving", "drain"), "a duration with its unit, such as 250ms"),
        (("model", "weights"), "a mapping with random or checkpoint"),
        (("offload", "mode"), "one of off, recall, cooperative"),
    ],
)
def test_expectation(path: tuple[str, ...], words: str) -> None:
    assert schema.expectation(schema.field(path)) == words
