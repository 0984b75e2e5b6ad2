"""A folder in memory for what the processes of one deployment share while they run."""

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

PREFIX = "dualpace-run-"
SHARED_MEMORY = Path("/dev/shm")


class RunFolder:
    """Exists until it is closed. What is left of a run that was killed goes when the next one starts.

    A folder belongs to whoever holds the lock `lock`; processes that inherit this descriptor keep the folder alive.
    """

    def __init__(self, root: Path | None = None) -> None:
        """Make one in `root`, by default where files are shared memory."""
        root = root or _root()
        for folder in root.glob(f"{PREFIX}*"):
            with _unless_alive(folder) as left:
                if left:
                    shutil.rmtree(folder, ignore_errors=True)
        while True:
            self.path = Path(tempfile.mkdtemp(prefix=PREFIX, dir=root))
            # Until it is locked, another start may take it for one that was left.
            with contextlib.suppress(FileNotFoundError):
                self.lock = _open(self.path)
                fcntl.flock(self.lock, fcntl.LOCK_EX)
                if self.path.exists():
                    return
                os.close(self.lock)

    def tell(self, url: str) -> None:
        """Say that the deployment is served at `url`."""
        (self.path / _address()).write_text(url)

    def close(self) -> None:
        """Remove the folder."""
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self.lock)


def served_here() -> list[str]:
    """The URLs of the deployments that this process may look at and can reach."""
    urls = []
    for file in sorted(_root().glob(f"{PREFIX}*/{_address()}")):
        with _unless_alive(file.parent) as left, contextlib.suppress(OSError):  # it may end just now
            urls += [] if left else [file.read_text()]
    return urls


def _root() -> Path:
    return SHARED_MEMORY if SHARED_MEMORY.is_dir() else Path(tempfile.gettempdir())


def _address() -> str:
    """The file that says where it is served: containers may share memory while each has a network of its own."""
    return f"url-{Path('/proc/self/ns/net').stat().st_ino}"


def _open(folder: Path) -> int:
    return os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)


@contextlib.contextmanager
def _unless_alive(folder: Path) -> Iterator[bool]:
    """Whether `folder` is left of a run that has ended; while the block lasts, no other start takes it away."""
    try:
        lock = _open(folder)
    except OSError:  # another user's, or gone meanwhile
        yield False
        return
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        left = True
    except BlockingIOError:
        left = False
    try:
        yield left
    finally:
        os.close(lock)
