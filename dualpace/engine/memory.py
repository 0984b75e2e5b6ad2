"""The ring memory on the engine's side: one file that the engine makes, frontends map and the engine removes.

Byte 0 of the file is locked by the engine while it lives, byte 1 + r by the frontend that has claimed ring r. The locks
belong to open files, so the kernel gives them up when their owner dies.
"""

import ctypes
import fcntl
import mmap
import os
import stat
import struct
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from dualpace.plan import abi
from dualpace.plan.plan import Plan
from dualpace.plan.structs import MAGIC

if TYPE_CHECKING:
    from dualpace.engine.link import Region
    from dualpace.engine.verbs import Endpoint

_ENGINE_BYTE = 0
# Where EngineStatus begins: right behind the header, in every plan.
_STATUS = ctypes.sizeof(abi.fixed_view("MemoryHeader"))


class RingMemoryError(Exception):
    """Ring memory that cannot be made; the message names the file and the remedy."""


class RingMemory:
    """The mapping, zeroed apart from its header. `address` is where it lies in this process, `file` its descriptor."""

    def __init__(self, path: Path, plan: Plan, *, reserved: bool = True) -> None:
        """Make the file at `path`, replacing what an engine that is gone left there. Raises RingMemoryError.

        Unless it is `reserved`, it takes memory where it is written alone.
        """
        self.path = path
        self._reserved = reserved
        self.size = abi.ring_bytes(plan.rings)
        with _left_behind(path) as epoch:
            self._make(path, plan, epoch)

    def _make(self, path: Path, plan: Plan, last_epoch: int) -> None:
        """Make the file under another name, whole and locked, then rename it; `last_epoch` 0 says there is none yet."""
        try:
            self.file, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        except OSError as error:
            raise RingMemoryError(
                f"{path}: cannot make it: {error.strerror}; give --rings a writable folder"
            ) from error
        temporary = Path(name)
        try:
            # Reserved now, so that a store cannot fail later for want of room.
            if self._reserved:
                os.posix_fallocate(self.file, 0, self.size)
            else:
                os.ftruncate(self.file, self.size)
            self._lock()
            self._map = mmap.mmap(self.file, self.size)
            self._whole = (ctypes.c_char * self.size).from_buffer(self._map)
            self.address = ctypes.addressof(self._whole)
            self._write_header(plan, last_epoch + 1)
            if last_epoch:
                temporary.replace(path)
            else:
                path.hardlink_to(temporary)
        except FileExistsError as error:
            os.close(self.file)
            raise RingMemoryError(_taken(path)) from error
        except OSError as error:
            os.close(self.file)
            raise RingMemoryError(self._shortage(path, error)) from error
        finally:
            temporary.unlink(missing_ok=True)

    def lend(self, endpoint: "Endpoint", offset: int, size: int, *, writable: bool = False) -> "Region":
        """Let the peer of `endpoint` read a part of it, or write too. Raises LinkError."""
        return endpoint.lend(self.address + offset, size, writable=writable)

    def close(self) -> None:
        """Unmap, and remove the file if it is still this one."""
        try:
            if os.path.samestat(self.path.stat(), os.fstat(self.file)):
                self.path.unlink()
        except FileNotFoundError:
            pass
        del self._whole
        self._map.close()
        os.close(self.file)

    def _lock(self) -> None:
        fcntl.fcntl(self.file, fcntl.F_OFD_SETLK, write_lock(_ENGINE_BYTE))

    def _write_header(self, plan: Plan, epoch: int) -> None:
        abi.fixed_view("EngineStatus").from_address(self.address + _STATUS).epoch = epoch
        header = abi.fixed_view("MemoryHeader").from_address(self.address)
        header.layout = int(abi.layout_hash(plan), 16)
        header.bytes = self.size
        header.rings = plan.rings.rings
        header.magic = MAGIC

    def _shortage(self, path: Path, error: OSError) -> str:
        free = os.statvfs(path.parent)
        have = free.f_bavail * free.f_frsize
        if have >= self.size:
            return f"{path}: cannot make it: {error.strerror}"
        return (
            f"{path}: the rings need {self.size} bytes and {path.parent} has {have} left; "
            f"lower nic.rings or nic.slots, or give the container --shm-size={self.size - have + (64 << 20)}"
        )


def ring_byte(ring: int) -> int:
    """The byte of the file that whoever has claimed `ring` locks."""
    return 1 + ring


def write_lock(byte: int) -> bytes:
    """A `struct flock` for one byte, for F_OFD_SETLK."""
    return struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, byte, 1, 0)


@contextmanager
def _left_behind(path: Path) -> Iterator[int]:
    """The epoch of the engine that left a file at `path`, from 1; 0 if there is no file.

    The file is locked meanwhile, so that of several engines one alone puts its own in its place. Raises RingMemoryError
    for a file that a living engine uses or that is no file of rings.
    """
    try:
        file = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError:
        yield 0
        return
    except OSError as error:
        raise RingMemoryError(f"{path}: cannot replace it: {error.strerror}; give --rings another path") from error
    try:
        _lock_left_behind(path, file)
        view = abi.fixed_view("EngineStatus")
        status = os.pread(file, ctypes.sizeof(view), _STATUS)
        yield max(int(view.from_buffer_copy(status.ljust(ctypes.sizeof(view), b"\0")).epoch), 1)
    finally:
        os.close(file)


def _lock_left_behind(path: Path, file: int) -> None:
    magic = MAGIC.to_bytes(8, "little")
    if not stat.S_ISREG(os.fstat(file).st_mode) or os.pread(file, len(magic), 0) != magic:
        raise RingMemoryError(f"{path}: there is something else than rings; give --rings another path")
    try:
        fcntl.fcntl(file, fcntl.F_OFD_SETLK, write_lock(_ENGINE_BYTE))
        # Its engine may have removed it, or another engine replaced it, before it was locked here.
        still_there = os.path.samestat(path.stat(), os.fstat(file))
    except (BlockingIOError, FileNotFoundError):
        still_there = False
    if not still_there:
        raise RingMemoryError(_taken(path))


def _taken(path: Path) -> str:
    return f"{path}: another engine serves these rings; stop it or give --rings another path"
