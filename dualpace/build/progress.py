"""How a build says what it is doing, and what becomes of that on a terminal and in a log."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol, TextIO

if TYPE_CHECKING:
    from rich.progress import Progress as Display


SILENCE = 10


class Progress(Protocol):
    """Receives what goes on. Called from any thread."""

    def step(self, text: str) -> None:
        """What is being done now; the next step replaces it."""

    def note(self, text: str) -> None:
        """Something that stays to be read, such as a finished unit or a compiler's warnings."""


@contextmanager
def report_to(stream: TextIO) -> Iterator[Progress]:
    """Progress on `stream`: a live line with a clock on a terminal, else a line a second while things change."""
    if not stream.isatty():
        lines = _Lines(stream)
        try:
            yield lines
        finally:
            lines.close()
        return
    from rich.console import Console
    from rich.progress import Progress as Display
    from rich.progress import SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn())
    with Display(*columns, console=Console(file=stream), transient=True) as display:
        yield _Live(display)


class _Live:
    def __init__(self, display: "Display") -> None:
        self._display = display
        self._task = display.add_task("", total=None)

    def step(self, text: str) -> None:
        self._display.update(self._task, description=text)

    def note(self, text: str) -> None:
        self._display.console.print(text, markup=False, highlight=False, soft_wrap=True)


class _Lines:
    """Writes the step of the moment, once a second while steps change and every SILENCE seconds while one lasts."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._start = time.monotonic()
        self._text = self._written = ""
        self._closed = threading.Event()
        self._clock = threading.Thread(target=self._tick, daemon=True)
        self._clock.start()

    def step(self, text: str) -> None:
        self._text = text

    def note(self, text: str) -> None:
        self._write(text)

    def close(self) -> None:
        self._closed.set()
        self._clock.join()

    def _tick(self) -> None:
        silent = 0
        while not self._closed.wait(1.0):
            silent += 1
            if self._text != self._written or silent == SILENCE:
                silent = 0
                self._written = self._text
                self._write(self._text)

    def _write(self, text: str) -> None:
        self._stream.write(f"[{time.monotonic() - self._start:6.1f} s] {text}\n")
        self._stream.flush()
