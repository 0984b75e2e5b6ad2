"""Jinja filters: plan values as C++ literals."""

import struct


def f32(value: float) -> str:
    """The shortest C++ float literal that reads back as `value` rounded to single precision.

    Raises ValueError for infinities, NaN and values beyond single precision.
    """
    try:
        wanted = struct.pack("<f", value)
    except OverflowError:
        raise ValueError(f"{value!r} is no single-precision number") from None
    if value - value != 0:
        raise ValueError(f"{value!r} is no single-precision number")
    for digits in range(1, 10):
        text = f"{value:.{digits}g}"
        if struct.pack("<f", float(text)) == wanted:
            break
    return f"{text}f" if "." in text or "e" in text else f"{text}.0f"


def cpp(value: bool | int) -> str:
    """A C++ literal of a bool or an int. Raises TypeError for anything else."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    raise TypeError(f"{value!r} is neither a bool nor an int")
