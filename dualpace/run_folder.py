"""A folder in memory for what the processes of one deployment share while they run."""

import contextlib
import fcntl
import os
import shutil
import tempfile
from pathlib import Path

PREFIX = "dualpace-run-"
# A file in it, once frontends listen: the URL at which they do.
ADDRESS = "url"
SHARED_MEMORY = Path("/dev/shm")


class RunFolder:
    """Exists until it is closed. What is left of a run that was killed goes when the next one starts.

    A folder belongs to whoever holds the lock `lock`; processes that inherit this descriptor keep the folder alive.
    """

    def __init__(self, root: Path | None = None) -> None:
        """Make one in `root`, by default where files are shared memory."""
        root = root or (SHARED_MEMORY if SHARED_MEMORY.is_dir() else Path(tempfile.gettempdir()))
        for left in root.glob(f"{PREFIX}*"):
            _remove_unless_locked(left)
        while True:
            self.path = Path(tempfile.mkdtemp(prefix=PREFIX, dir=root))
            # Until it is locked, another start may take it for one that was left.
            with contextlib.suppress(FileNotFoundError):
                self.lock = _open(self.path)
                fcntl.flock(self.lock, fcntl.LOCK_EX)
                if self.path.exists():
                    return
                os.close(self.lock)

    def close(self) -> None:
        """Remove the folder."""
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self.lock)


def _open(folder: Path) -> int:
    return os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)


def _remove_unless_locked(folder: Path) -> None:
    try:
        lock = _open(folder)
    except OSError:  # another user's, or gone meanwhile
        return
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(folder, ignore_errors=True)
    except BlockingIOError:
        pass
    finally:
        os.close(lock)
