"""Jinja filters: plan values as C++ literals."""

import ctypes
import math


def f32(value: float) -> str:
    """The shortest C++ float literal that reads back as `value` rounded to single precision.

    Raises ValueError for infinities, NaN and values beyond single precision.
    """
    single = ctypes.c_float(value).value
    if not math.isfinite(single):
        raise ValueError(f"{value!r} is no single-precision number")
    texts = (f"{single:.{digits}g}" for digits in range(1, 10))
    text = next(text for text in texts if ctypes.c_float(float(text)).value == single)
    return f"{text}f" if "." in text or "e" in text else f"{text}.0f"


def cpp(value: bool | int) -> str:
    """A C++ literal of a bool or an int. Raises TypeError for anything else."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    raise TypeError(f"{value!r} is neither a bool nor an int")
