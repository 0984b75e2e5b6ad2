"""Plan values as C++ literals."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dualpace.render.filters import cpp, f32


@given(st.floats(width=32, allow_nan=False, allow_infinity=False))
def test_a_float_literal_reads_back_to_the_bit(value):
    text = f32(value)
    assert text.endswith("f")
    assert "." in text or "e" in text, "without either it would be no float literal"
    assert struct.pack("f", float(text[:-1])) == struct.pack("f", value)


def test_float_literals_are_as_one_would_write_them():
    assert [f32(x) for x in (1.0, 1e-6, 0.0625, 128**-0.5, 0)] == ["1.0f", "1e-06f", "0.0625f", "0.088388346f", "0.0f"]


@pytest.mark.parametrize("value", [float("inf"), float("nan"), 1e39])
def test_what_is_no_float_is_refused(value):
    with pytest.raises(ValueError, match="single-precision"):
        f32(value)


def test_bools_and_ints():
    assert [cpp(x) for x in (True, False, 3, -1)] == ["true", "false", "3", "-1"]
    with pytest.raises(TypeError, match="neither a bool nor an int"):
        cpp("3")
