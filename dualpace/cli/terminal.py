"""What commands say and how they end: streams, colour, exit codes."""

from __future__ import annotations

import os
import sys
from typing import NoReturn, TextIO

from dualpace.exits import Exit

__all__ = ["Exit", "fail", "open_streams", "reason", "show", "write"]


def open_streams() -> None:
    """Give a process that was started with closed streams somewhere to write."""
    sys.stdin, sys.stdout, sys.stderr = (
        stream or os.fdopen(os.open(os.devnull, os.O_RDWR), mode, encoding="utf-8")
        for stream, mode in ((sys.stdin, "r"), (sys.stdout, "w"), (sys.stderr, "w"))
    )


def fail(message: str, code: Exit = Exit.USAGE) -> NoReturn:
    """End the command with one line on stderr."""
    sys.stderr.write(f"dualpace: {message}\n")
    sys.exit(code)


def reason(error: OSError) -> str:
    """What went wrong with which file, in one line."""
    where = f"{error.filename}: " if error.filename else ""
    return f"{where}{error.strerror or error}"


def write(text: str) -> None:
    """Write `text` to stdout at once, as it is."""
    sys.stdout.write(text)
    sys.stdout.flush()


def show(text: str, stream: TextIO | None = None) -> None:
    """Write `text`, in colour on a terminal."""
    stream = stream or sys.stdout
    if not stream.isatty():
        stream.write(text)
        stream.flush()
        return
    from rich.console import Console

    from dualpace.lint.reports.colour import STYLES, Highlighter

    console = Console(file=stream, highlighter=Highlighter(), theme=STYLES, soft_wrap=True)
    console.print(text, end="", markup=False, emoji=False)
