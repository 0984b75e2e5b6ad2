"""Files outside the bundle that may change while what they hold is in use: certificates and keys."""

import logging
from collections.abc import Callable
from pathlib import Path

from dualpace.plan.manifest import BundleError

logger = logging.getLogger(__name__)


class Followed:
    """Files as they are when this is made; their owner reads them after that."""

    def __init__(self, read: Callable[[], str], *files: str) -> None:
        """`read` takes what they hold then and says what of it; or raises BundleError, and leaves all as it was."""
        self._read, self._files = read, files
        self._seen = self._stamp()

    def follow(self) -> None:
        """Read them again if they have changed, and say so. What cannot be used is not taken."""
        stamp = self._stamp()
        if stamp == self._seen:
            return
        self._seen = stamp
        try:
            told = self._read()
        except BundleError as error:
            logger.error("what was read before stays in use: %s", error)
        else:
            logger.info("%s has changed: %s", self._files[0], told)

    def _stamp(self) -> tuple[int, ...]:
        stamp: list[int] = []
        for file in map(Path, self._files):
            try:
                found = file.stat()
            except OSError:
                continue
            stamp += (found.st_ino, found.st_size, found.st_mtime_ns)
        return tuple(stamp)
