"""Plain scalars mean what the core schema of YAML 1.2 says."""

import math

import pytest

from dualpace.spec.scalars import resolve


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("", None),
        ("~", None),
        ("null", None),
        ("true", True),
        ("False", False),
        ("no", "no"),
        ("Yes", "Yes"),
        ("on", "on"),
        ("off", "off"),
        ("y", "y"),
        ("0", 0),
        ("-12", -12),
        ("+7", 7),
        ("0555567", 555567),
        ("0o17", 15),
        ("0x1F", 31),
        ("0b11", "0b11"),
        ("1_000", "1_000"),
        ("1:10", "1:10"),
        ("1e-5", 1e-5),
        ("1E5", 1e5),
        (".5", 0.5),
        ("5.", 5.0),
        ("1.5e+3", 1500.0),
        (".inf", math.inf),
        ("-.INF", -math.inf),
        ("inf", "inf"),
        ("2001-01-01", "2001-01-01"),
        ("40GiB", "40GiB"),
        ("<<", "<<"),
        ("9" * 18, 10**18 - 1),
        ("9" * 5000, math.inf),
        ("0x" + "f" * 5000, "0x" + "f" * 5000),
        ("１２", "１２"),
    ],
)
def test_value(text: str, value: object) -> None:
    resolved = resolve(text)
    assert resolved == value
    assert type(resolved) is type(value)


def test_nan() -> None:
    assert math.isnan(float(str(resolve(".nan"))))
