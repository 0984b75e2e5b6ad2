"""The log of a frontend: a line of JSON an event, on stderr."""

import json
import logging
import queue
import threading
import traceback
from collections.abc import MutableMapping
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, Literal, TextIO

# What may wait for whoever reads the log, and in characters of what requests say; beyond that, lines are left out and
# counted.
LINES = 10_000
CHARACTERS = 64 << 20
GATHER_S = 0.1
CLOSE_S = 2.0

# Which requests have a line: those that failed in the server, all, or all with what was asked.
Log = Literal["errors", "requests", "prompts"]

# Where a request's scope has what is to be said of it.
REPORT = "dualpace.report"

_APART = "fields"
_encoded = json.JSONEncoder(default=str).encode


def report_of(scope: MutableMapping[str, Any]) -> dict[str, Any]:
    """The fields of a request's line, to be added to."""
    report: dict[str, Any] = scope.setdefault(REPORT, {})
    return report


def event(logger: logging.Logger, level: int, message: str, fields: dict[str, Any]) -> None:
    """Log `message` with `fields` of its own, whose names stand beside those of every line.

    Who called is not looked for: lines do not say it.
    """
    if logger.isEnabledFor(level):
        logger.handle(logger.makeRecord(logger.name, level, "", 0, message, (), None, extra={_APART: fields}))


class JsonLines(logging.Handler):
    """Writes lines from a thread of its own: a reader that stalls holds up no request."""

    def __init__(self, stream: TextIO, common: dict[str, Any]) -> None:
        """`common` is said on every line."""
        super().__init__()
        self._stream = stream
        self._common = common
        self._lines: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        self._left_out = 0
        # Each is changed by one side alone.
        self._put = self._taken = 0
        self._closing = threading.Event()
        self._writer = threading.Thread(target=self._write, name="log", daemon=True)
        self._writer.start()

    def emit(self, record: logging.LogRecord) -> None:
        """Log a record. Of exceptions the type and the place are told, not the text, which may quote a request."""
        if self._lines.qsize() >= LINES or self._put - self._taken >= CHARACTERS:
            self._left_out += 1
            return
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "message": record.getMessage().strip(),
            **self._common,
            **getattr(record, _APART, {}),
        }
        if self._left_out:
            line["lines_left_out"], self._left_out = self._left_out, 0
        if record.exc_info and (error := record.exc_info[1]):
            line["exception"] = _told(error)
        self._put += _size(line)
        self._lines.put(line)

    def close(self) -> None:
        """Write what waits, if that takes no longer than a moment."""
        self._closing.set()
        self._lines.put(None)
        self._writer.join(CLOSE_S)
        super().close()

    def _write(self) -> None:
        while (line := self._lines.get()) is not None:
            # A pipe that is full or gone costs a line, not those after it.
            with suppress(OSError, ValueError):
                self._stream.write(_encoded(line) + "\n")
            self._taken += _size(line)
            if self._lines.empty():
                with suppress(OSError, ValueError):
                    self._stream.flush()
                # Lines gather, for to wake this thread costs the one that answers requests more than a line does.
                self._closing.wait(GATHER_S)


def log_to(stream: TextIO, common: dict[str, Any]) -> None:
    """Send all that this process logs to `stream`."""
    logging.basicConfig(handlers=[JsonLines(stream, common)], level=logging.INFO)


def _size(line: dict[str, Any]) -> int:
    return sum(len(value) for value in line.values() if isinstance(value, str))


def _told(error: BaseException) -> list[str]:
    """An exception and those that it came from, each with the places that it came through."""
    lines = []
    seen: BaseException | None = error
    while seen is not None:
        places = traceback.extract_tb(seen.__traceback__)
        lines += [type(seen).__name__, *(f"{place.filename}:{place.lineno} {place.name}" for place in places)]
        seen = seen.__cause__ or (None if seen.__suppress_context__ else seen.__context__)
    return lines
