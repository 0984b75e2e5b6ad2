"""Sizes and durations have units."""

import pytest

from dualpace.spec.units import parse_duration, parse_size


@pytest.mark.parametrize(
    ("text", "size"),
    [("1B", 1), ("40GiB", 40 * 2**30), ("40GB", 40 * 10**9), ("1.5 KiB", 1536), ("64kB", 64000), ("2TiB", 2**41)],
)
def test_size(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize(
    ("text", "seconds"), [("250ms", 0.25), ("30s", 30.0), ("1.5min", 90.0), ("2h", 7200.0), ("7us", 7e-6), ("0s", 0.0)]
)
def test_duration(text: str, seconds: float) -> None:
    assert parse_duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize(
    "value", [40, 40.0, True, None, "40", "GiB", "40gib", "-1GiB", "1e3GiB", "40GiB\n", "٤GiB", "9" * 400 + "TiB", "0B"]
)
def test_what_is_not_a_size(value: object) -> None:
    with pytest.raises(ValueError, match=r"unit|byte"):
        parse_size(value)


@pytest.mark.parametrize("value", [5, "5", "5S", "5 parsecs", "1m", "-1s"])
def test_what_is_not_a_duration(value: object) -> None:
    with pytest.raises(ValueError, match="unit"):
        parse_duration(value)
