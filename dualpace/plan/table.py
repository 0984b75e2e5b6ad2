"""Tables in plain text."""

from collections.abc import Sequence


def facts(rows: Sequence[Sequence[str]]) -> str:
    """Rows that say something of what stands in their first column."""
    return _lines(rows, [False] * _columns(rows))


def table(heading: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Rows under a heading; columns of numbers are to the right. "-" is a number that is not there."""
    numeric = [all(row[i][:1] in {*"-0123456789", ""} for row in rows) for i in range(len(heading))]
    return _lines([heading, *rows], numeric)


def _columns(rows: Sequence[Sequence[str]]) -> int:
    return max(map(len, rows), default=0)


def _lines(rows: Sequence[Sequence[str]], numeric: Sequence[bool]) -> str:
    widths = [max(len(row[i]) for row in rows if i < len(row)) for i in range(_columns(rows))]
    lines = (
        "  ".join(
            cell.rjust(width) if number else cell.ljust(width)
            for cell, width, number in zip(row, widths, numeric, strict=False)
        )
        for row in rows
    )
    return "".join(f"  {line}".rstrip() + "\n" for line in lines)
