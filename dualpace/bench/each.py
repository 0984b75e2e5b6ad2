"""Every request of a run, as CSV."""

import csv
from pathlib import Path

from dualpace.bench.load import Load
from dualpace.bench.record import Record

LOAD = ("workload", "rate", "concurrency", "seed")
TIMES = ("intended", "sent", "first", "last", "end")
COUNTS = ("prompt", "cached", "asked", "tokens", "pieces")


def append(path: Path, load: Load, record: Record) -> None:
    """Add a line a request, those of the warm-up too, and a head where the file is new. Raises OSError.

    Times are in seconds from the start of the run: `first` and `last` text, `end` of the answer.
    """
    columns = record.columns()
    with path.open("a", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        if file.tell() == 0:
            writer.writerow((*LOAD, *(f"{name}_s" for name in TIMES), *COUNTS, "error"))
        of_run = [getattr(load, name) for name in LOAD]
        for row in range(len(record)):
            times = (f"{columns[name][row]:.6f}" for name in TIMES)
            counts = (int(columns[name][row]) for name in COUNTS)
            code = int(columns["error"][row])
            writer.writerow((*of_run, *times, *counts, record.errors[code - 1] if code else ""))
