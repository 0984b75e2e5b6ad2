"""Files by their content, and folders that appear whole."""

import hashlib
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def file_digest(path: Path) -> str:
    """SHA-256 of a file's bytes, in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def new_folder(final: Path) -> Iterator[Path]:
    """A folder to fill, which becomes `final` by rename on success and is removed on failure.

    Any number of processes, of any number of containers, may make `final` at once: those that do so do the work twice,
    and the first to finish is kept, for equal names mean equal content.
    """
    final.parent.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(dir=final.parent, prefix=f".{final.name[:16]}."))
    try:
        yield folder
        folder.chmod(0o755)
        try:
            folder.rename(final)
        except OSError:
            if not final.is_dir():
                raise
    finally:
        shutil.rmtree(folder, ignore_errors=True)
