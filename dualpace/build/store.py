"""The content-addressed store: what was made once from the same inputs is never made again."""

import hashlib
import os
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path

from dualpace.files import file_digest, new_folder


def digest(parts: Iterable[str]) -> str:
    """SHA-256 over `parts`, each with its length, in hex."""
    sha = hashlib.sha256()
    for part in parts:
        data = part.encode()
        sha.update(b"%d:" % len(data))
        sha.update(data)
    return sha.hexdigest()


class Store:
    """Entries are folders named by the digest of what they were made from. They are only read once they are there.

    An entry appears by rename, so any number of builds may share a store.
    """

    def __init__(self, root: Path) -> None:
        # Compilers run in folders of their own, where a relative path would lead elsewhere.
        self.root = root.absolute()

    def path(self, key: str) -> Path:
        """Where the entry `key` is, or would be."""
        return self.root / key[:2] / key

    def find(self, key: str) -> Path | None:
        """The entry `key`, if it is there."""
        entry = self.path(key)
        return entry if entry.is_dir() else None

    def add(self, key: str, make: Callable[[Path], None]) -> Path:
        """The entry `key` with what `make` writes into the folder that it is given. What `make` raises, add raises."""
        entry = self.path(key)
        with new_folder(entry) as folder:
            make(folder)
        return entry

    def drop(self, key: str) -> None:
        """Forget the entry `key`."""
        shutil.rmtree(self.path(key), ignore_errors=True)

    def file_digest(self, path: Path) -> str:
        """SHA-256 of a large file, read only when its size or time of change is new."""
        stat = path.stat()
        key = digest(["file", os.fspath(path.resolve()), str(stat.st_size), str(stat.st_mtime_ns), str(stat.st_ino)])
        entry = self.find(key) or self.add(key, lambda folder: _write(folder / "sha256", file_digest(path)))
        return (entry / "sha256").read_text()


def _write(path: Path, text: str) -> None:
    path.write_text(text)
