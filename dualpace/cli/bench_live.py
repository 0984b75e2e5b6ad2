"""How a run goes, while it goes: a live line on a terminal, else one every few seconds."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TextIO

from dualpace.bench.compare import title

if TYPE_CHECKING:
    from dualpace.bench.load import Load
    from dualpace.bench.offer import Progress

Say = Callable[["Progress"], object]

# The rate shown is that of so many reports, half a second apart; without a terminal one in LINES is written.
WINDOW = 5
LINES = 10


@contextmanager
def live(load: Load, stream: TextIO) -> Iterator[Say]:
    """What to tell how the run of `load` goes."""
    recent: deque[Progress] = deque(maxlen=WINDOW)

    def state(progress: Progress) -> str:
        recent.append(progress)
        seconds = progress.elapsed - recent[0].elapsed
        pace = (progress.pieces - recent[0].pieces) / seconds if seconds > 0 else 0.0
        failed = f", {progress.failed} failed" if progress.failed else ""
        over = load.duration is not None and progress.elapsed > load.duration
        last = ", time is up: no more are sent" if over else ""
        return f"{pace:,.0f} tokens/s, {progress.active} active, {progress.ended} done{failed}{last}"

    if not stream.isatty():
        yield _lines(load, stream, state)
        return
    from rich.console import Console
    from rich.progress import BarColumn, SpinnerColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Display

    columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), BarColumn(30), TimeElapsedColumn(),
               TextColumn("{task.fields[state]}", markup=False))  # fmt: skip
    with Display(*columns, console=Console(file=stream), transient=True) as display:
        task = display.add_task(title(load), total=1.0 if load.duration or load.requests else None, state="")
        yield lambda progress: display.update(task, completed=_part(load, progress), state=state(progress))


def _lines(load: Load, stream: TextIO, state: Callable[[Progress], str]) -> Say:
    told = 0

    def say(progress: Progress) -> None:
        nonlocal told
        text = state(progress)
        if told % LINES == LINES - 1:
            stream.write(f"[{progress.elapsed:6.1f} s] {title(load)}: {text}\n")
            stream.flush()
        told += 1

    return say


def _part(load: Load, progress: Progress) -> float:
    by_time = progress.elapsed / load.duration if load.duration else 0.0
    by_count = progress.ended / load.requests if load.requests else 0.0
    return min(max(by_time, by_count, 0.0), 1.0)
