"""Quantities as people read them."""

_TIMES = (("s", 1.0), ("ms", 1e3))


def size_text(size: float) -> str:
    """Bytes in binary units: `1.5 GiB`."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(size) < 1024:
            return f"{size:.0f} {unit}" if unit == "B" or size >= 100 else f"{size:.3g} {unit}"
        size /= 1024
    return f"{size:.3g} TiB"


def time_text(seconds: float) -> str:
    """Seconds to three figures, with a fitting unit: `3.31 ms`."""
    value, unit = next(
        ((seconds * scale, unit) for unit, scale in _TIMES if seconds * scale >= 1), (seconds * 1e6, "us")
    )
    return f"{value:.{2 if value < 10 else 1 if value < 100 else 0}f} {unit}"


def rate_text(rate: float) -> str:
    """A rate to three figures at least: `12.3`, `5,943`."""
    return f"{rate:,.{0 if rate >= 100 else 1 if rate >= 10 else 2}f}"
