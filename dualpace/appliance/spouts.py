"""Event streams whose tokens the ring library sends, all of a batch in one call."""

import ctypes
from array import array
from pathlib import Path

from dualpace.appliance.tally import GENERATED_TOKENS, ITL, Tally
from dualpace.engine.ring import TokenEvent

_HANDLE, _TEXT, _SIZE, _TAG = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t, ctypes.c_uint64


class Spouts:
    """The streams of one event loop, by tag; what they send is counted in its tally. Times are of `pace.clock`."""

    def __init__(self, library: Path, tally: Tally) -> None:
        self.tags: set[int] = set()
        self._texts: dict[int, bytes] = {}
        self._tally = tally
        self._bounds = array("d", ITL.bounds)
        # Each call is short; to let go of the interpreter could take longer.
        self._library = ctypes.PyDLL(str(library))
        self._library.dp_spouts_create.restype = _HANDLE
        self._library.dp_spouts_learn.argtypes = (_HANDLE, ctypes.c_uint32, _TEXT, _SIZE)
        self._library.dp_spouts_open.argtypes = (
            _HANDLE,
            _TAG,
            ctypes.c_int,
            _TEXT,
            _SIZE,
            _TEXT,
            _SIZE,
            ctypes.c_double,
        )
        self._library.dp_spouts_close.argtypes = (_HANDLE, _TAG, ctypes.POINTER(ctypes.c_double))
        self._library.dp_spouts_pour.argtypes = (
            _HANDLE, _HANDLE, _HANDLE, _SIZE, ctypes.c_double, _HANDLE, _SIZE, _HANDLE, _HANDLE
        )  # fmt: skip
        self._handle = self._library.dp_spouts_create()

    def learn(self, token: int, text: bytes) -> None:
        """What `token` adds to any text, as JSON. Others are not sent."""
        if token in self._texts:
            return
        self._texts[token] = text
        self._library.dp_spouts_learn(self._handle, token, text, len(text))

    def open(self, tag: int, socket: int, before: bytes, after: bytes, last: float) -> None:
        """Send the tokens of `tag` to `socket`, in chunks of HTTP; `last` is when the one before them came."""
        self._library.dp_spouts_open(self._handle, tag, socket, before, len(before), after, len(after), last)
        self.tags.add(tag)

    def close(self, tag: int) -> tuple[int, float]:
        """Send no more. Returns how many tokens were sent since it was opened, and when the last came."""
        self.tags.remove(tag)
        last = ctypes.c_double()
        sent = self._library.dp_spouts_close(self._handle, tag, ctypes.byref(last))
        return sent, last.value

    def pour(self, events: list[TokenEvent], now: float) -> tuple[list[TokenEvent], list[tuple[int, bytes, int]]]:
        """Send what came for open tags at `now`, and count it.

        Returns the events that are left, in order, and of each chunk that a socket took only in part the tag, the text,
        and how many bytes are left. After either nothing of its tag is sent.
        """
        open_tags = self.tags
        mine = [event for event in events if event.tag in open_tags and not event.finish]
        tags, tokens = array("Q", [event.tag for event in mine]), array("i", [event.token for event in mine])
        gaps, unsent = array("d", bytes(8 * ITL.cells)), array("i", bytes(4 * len(mine)))
        all_sent = self._library.dp_spouts_pour(
            self._handle, _at(tags), _at(tokens), len(mine), now,
            _at(self._bounds), len(self._bounds), _at(gaps), _at(unsent),
        )  # fmt: skip
        self._tally.merge(ITL, gaps)
        self._tally.add(GENERATED_TOKENS, len(mine) - unsent.count(-1))
        if all_sent and len(mine) == len(events):
            return [], []
        sizes = iter(unsent)
        left = [e for e in events if e.tag not in open_tags or e.finish or next(sizes) < 0]
        begun = [(e.tag, self._texts[e.token], size) for e, size in zip(mine, unsent, strict=True) if size > 0]
        return left, begun


def _at(numbers: "array[int] | array[float]") -> int:
    return numbers.buffer_info()[0]
