"""What a checkpoint says of its model, read with types and with errors that name file and key."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dualpace.plan.architectures import ARCHITECTURES, Architecture
from dualpace.plan.plan import DType
from dualpace.spec.models import Shape

MODEL_TYPES = {model_type: a for a in ARCHITECTURES.values() for model_type in a.model_types}


class CheckpointError(ValueError):
    """A checkpoint whose shape cannot be read or is not supported; the message names the file and the field."""


@dataclass(frozen=True)
class Checkpoint:
    """The shape of a checkpoint, and the type that its weights were made for, if it says so."""

    shape: Shape
    dtype: DType | None


@dataclass(frozen=True)
class Fields:
    """Values by key, as they stand in `file`; null counts as absent."""

    file: Path
    values: Mapping[str, Any]

    def refuse(self, key: str, why: str) -> CheckpointError:
        """The error that `key`'s value is."""
        return CheckpointError(f"{self.file}: {key} {self.values.get(key)!r} {why}")

    def has(self, key: str) -> bool:
        """Whether `key` has a value."""
        return self.values.get(key) is not None

    def integer(self, key: str, default: int | None = None) -> int:
        """A positive integer. Raises CheckpointError."""
        value = self.values[key] if self.has(key) else default
        if not isinstance(value, int) or isinstance(value, bool) or value <= 0:
            raise self.refuse(key, "should be a positive integer")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """A positive finite number. Raises CheckpointError."""
        value = self.values[key] if self.has(key) else default
        if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < float("inf"):
            raise self.refuse(key, "should be a positive number")
        return float(value)

    def softcap(self, key: str, architecture: Architecture) -> float | None:
        """The soft cap of attention scores, if there is one. Raises CheckpointError where the family has none."""
        if not self.has(key):
            return None
        if not architecture.softcap:
            raise self.refuse(key, f"is not supported for {architecture.family}")
        return self.number(key)

    def object(self, key: str) -> "Fields":
        """The fields of an object; none where it is absent. Raises CheckpointError."""
        value = self.values[key] if self.has(key) else {}
        if not isinstance(value, dict):
            raise self.refuse(key, "should be an object")
        return Fields(self.file, value)

    def architecture(self, key: str) -> Architecture:
        """The family of the model type at `key`. Raises CheckpointError."""
        architecture = MODEL_TYPES.get(str(self.values.get(key)))
        if architecture is None:
            raise self.refuse(key, f"is not a supported model type: {', '.join(sorted(MODEL_TYPES))} are")
        return architecture
