"""The header of a GGUF file: metadata and the tensor table, read without numpy and without trusting the file.

Format: the GGUF specification of ggml, versions 2 and 3, little-endian. Every length is checked against what is left of
the file before anything is allocated; arrays longer than `MAX_ARRAY` (vocabularies) are walked over and left out.
"""

import mmap
import struct
from dataclasses import dataclass
from pathlib import Path

MAX_ARRAY = 1024
MAX_DIMENSIONS = 4

_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9

Value = int | float | bool | str | tuple[int | float | bool | str, ...]


class GgufError(ValueError):
    """A file that is not a readable GGUF; the message says what is wrong and at which byte."""


@dataclass(frozen=True)
class TensorInfo:
    """One row of the tensor table. `shape` is outermost first, as in safetensors; `offset` is from the data's start."""

    shape: tuple[int, ...]
    type: int
    offset: int


@dataclass(frozen=True)
class GgufHeader:
    """Metadata by key, tensors by name, and the byte of the file at which tensor data starts."""

    metadata: dict[str, Value]
    tensors: dict[str, TensorInfo]
    data_start: int


class _Cursor:
    def __init__(self, data: mmap.mmap) -> None:
        self.data = data
        self.at = 0

    def skip(self, size: int) -> int:
        """Move over `size` bytes that must be there; returns where they start."""
        start = self.at
        if size > len(self.data) - start:
            raise GgufError(f"truncated: {size} bytes wanted at byte {start}, {len(self.data) - start} are left")
        self.at = start + size
        return start

    def scalar(self, code: str) -> int | float | bool:
        value: int | float | bool = struct.unpack_from("<" + code, self.data, self.skip(struct.calcsize("<" + code)))[0]
        return value

    def count(self, code: str, least: int) -> int:
        """A count of things of `least` bytes or more, so never more than the rest of the file can hold."""
        count = int(self.scalar(code))
        if count * least > len(self.data) - self.at:
            raise GgufError(f"truncated or corrupt: a count of {count} at byte {self.at} exceeds the file")
        return count

    def string(self) -> str:
        size = self.count("Q", 1)
        start = self.skip(size)
        try:
            return self.data[start : self.at].decode()
        except UnicodeDecodeError as error:
            raise GgufError(f"a string at byte {start} is not UTF-8") from error

    def value(self, kind: int) -> Value | None:
        """The value of type `kind`; None for an array that is left out."""
        if kind in _SCALARS:
            return self.scalar(_SCALARS[kind])
        if kind == _STRING:
            return self.string()
        if kind != _ARRAY:
            raise GgufError(f"value type {kind} at byte {self.at} is unknown")
        return self._array()

    def _array(self) -> tuple[int | float | bool | str, ...] | None:
        kind = int(self.scalar("I"))
        if kind in _SCALARS:
            code = _SCALARS[kind]
            size = struct.calcsize("<" + code)
            count = self.count("Q", size)
            start = self.skip(count * size)
            return struct.unpack_from(f"<{count}{code}", self.data, start) if count <= MAX_ARRAY else None
        if kind != _STRING:
            raise GgufError(f"an array of value type {kind} at byte {self.at} is not supported")
        count = self.count("Q", 8)
        if count <= MAX_ARRAY:
            return tuple(self.string() for _ in range(count))
        for _ in range(count):
            self.skip(self.count("Q", 1))
        return None


def read_header(path: Path) -> GgufHeader:
    """Read the header of `path`. Raises GgufError, and OSError if the file cannot be read."""
    with path.open("rb") as file:
        if path.stat().st_size == 0:
            raise GgufError("the file is empty")
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _read(_Cursor(data))


def read_floats(path: Path, header: GgufHeader, name: str) -> tuple[float, ...]:
    """The values of a small one-dimensional fp32 tensor. Raises GgufError if it is anything else."""
    tensor = header.tensors[name]
    if tensor.type != 0 or len(tensor.shape) != 1 or tensor.shape[0] > MAX_ARRAY:
        raise GgufError(f"tensor {name} is not a short fp32 vector")
    size = 4 * tensor.shape[0]
    with path.open("rb") as file:
        file.seek(header.data_start + tensor.offset)
        data = file.read(size)
    if len(data) != size:
        raise GgufError(f"truncated: tensor {name} ends past the file")
    return struct.unpack(f"<{tensor.shape[0]}f", data)


def _read(cursor: _Cursor) -> GgufHeader:
    if cursor.data[:4] != b"GGUF":
        raise GgufError("the file does not begin with GGUF")
    cursor.skip(4)
    version = int(cursor.scalar("I"))
    if version not in (2, 3):
        raise GgufError(f"version {version} is not supported: 2 and 3, little-endian, are")
    # A tensor entry takes 24 bytes and a metadata entry 13, were their names empty.
    tensor_count = cursor.count("Q", 24)
    value_count = cursor.count("Q", 13)
    metadata: dict[str, Value] = {}
    for _ in range(value_count):
        key = cursor.string()
        if key in metadata:
            raise GgufError(f"metadata key {key} occurs twice")
        value = cursor.value(int(cursor.scalar("I")))
        if value is not None:
            metadata[key] = value
    tensors: dict[str, TensorInfo] = {}
    for _ in range(tensor_count):
        name = cursor.string()
        if name in tensors:
            raise GgufError(f"tensor {name} occurs twice")
        tensors[name] = _tensor(cursor)
    alignment = metadata.get("general.alignment", 32)
    if not isinstance(alignment, int) or alignment <= 0 or alignment % 8:
        raise GgufError(f"general.alignment {alignment} is not a multiple of 8")
    return GgufHeader(metadata, tensors, -(-cursor.at // alignment) * alignment)


def _tensor(cursor: _Cursor) -> TensorInfo:
    dimensions = int(cursor.scalar("I"))
    if dimensions > MAX_DIMENSIONS:
        raise GgufError(f"a tensor of {dimensions} dimensions at byte {cursor.at}")
    innermost_first = [int(cursor.scalar("Q")) for _ in range(dimensions)]
    return TensorInfo(tuple(reversed(innermost_first)), int(cursor.scalar("I")), int(cursor.scalar("Q")))
