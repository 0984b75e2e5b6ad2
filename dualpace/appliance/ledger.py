"""What keys use at all frontends: each has a page of its own, a file beside the rings, and reads the others'."""

import hashlib
import mmap
import os
from collections.abc import Sequence
from pathlib import Path

from dualpace.plan.api_keys import MOST_KEYS

_NAME = 8  # bytes
_NAMES = MOST_KEYS * _NAME
_NONE = bytes(_NAME)
_BYTES = _NAMES + 2 * 8 * MOST_KEYS


def name_of(key: bytes) -> bytes:
    """What stands for a key where the key itself has no place: the beginning of its SHA-256."""
    return hashlib.sha256(key).digest()[:_NAME]


class _Page:
    """Names in a row, and for each of them two counts: requests under way, and tokens spent."""

    def __init__(self, memory: mmap.mmap) -> None:
        self.names = memory
        self.counts: memoryview[int] = memoryview(memory)[_NAMES:].cast("Q")

    def place(self, name: bytes) -> int | None:
        """Where the counts of a key are, if this page has it."""
        at = self.names.find(name, 0, _NAMES)
        while at >= 0 and at % _NAME:
            at = self.names.find(name, at + 1, _NAMES)
        return None if at < 0 else 2 * at // _NAME


class Ledger:
    """One frontend's view of the ledger; only its own process writes its page, from one thread."""

    def __init__(self, beside: Path | None = None, frontend: int = 0, frontends: int = 1) -> None:
        """Pages are `beside` the rings, if these are a file. That of `frontend` begins empty: what it held is over."""
        self._missing = {} if beside is None else {i: _file(beside, i) for i in range(frontends) if i != frontend}
        self._own = _Page(mmap.mmap(-1, _BYTES) if beside is None else _mapped(_file(beside, frontend), create=True))
        self._own.names[:] = bytes(_BYTES)
        self._others: list[_Page] = []

    @property
    def is_shared(self) -> bool:
        """Whether there are other frontends."""
        return bool(self._missing or self._others)

    def open(self, names: Sequence[bytes]) -> None:
        """Have these keys on the page, with what there was of them.

        They keep their places, for others read the page meanwhile: what falls and rises again would count twice.
        """
        page, wanted = self._own, set(names)
        places = range(0, _NAMES, _NAME)
        held = {page.names[at : at + _NAME]: at for at in places}
        for name in held.keys() - wanted:
            page.names[held[name] : held[name] + _NAME] = _NONE
        free = (at for at in places if page.names[at : at + _NAME] == _NONE)
        for name in wanted - held.keys():
            at = next(free)
            page.counts[2 * at // _NAME] = page.counts[2 * at // _NAME + 1] = 0
            page.names[at : at + _NAME] = name

    def add(self, name: bytes, requests: int = 0, tokens: int = 0) -> None:
        """Count what a key uses here."""
        place = self._own.place(name)
        if place is not None:  # the key is still in the file
            # A key that was taken out of the file and put back in has lost what was under way.
            self._own.counts[place] = max(0, self._own.counts[place] + requests)
            self._own.counts[place + 1] += tokens

    def totals(self, name: bytes) -> tuple[int, int]:
        """Requests under way and tokens spent with a key, at all frontends. A frontend's begin at 0 when it does."""
        for frontend, file in tuple(self._missing.items()):
            if file.exists() and file.stat().st_size == _BYTES:
                self._others.append(_Page(_mapped(file)))
                del self._missing[frontend]
        requests, tokens = self._own_counts(name)
        for page in self._others:
            place = page.place(name)
            if place is not None:
                requests += page.counts[place]
                tokens += page.counts[place + 1]
        return requests, tokens

    def _own_counts(self, name: bytes) -> tuple[int, int]:
        place = self._own.place(name)
        return (0, 0) if place is None else (self._own.counts[place], self._own.counts[place + 1])


def _file(rings: Path, frontend: int) -> Path:
    return rings.with_name(f"{rings.name}.keys.{frontend}")


def _mapped(file: Path, *, create: bool = False) -> mmap.mmap:
    descriptor = os.open(file, os.O_RDWR | (os.O_CREAT if create else 0), 0o600)
    try:
        if create:
            os.ftruncate(descriptor, _BYTES)
        return mmap.mmap(descriptor, _BYTES)
    finally:
        os.close(descriptor)
