"""Reads the shape of a model from its checkpoint: a folder with config.json, or the header of a .gguf file."""

from pathlib import Path

from pydantic import ValidationError

from dualpace.plan.checkpoint.config import read_config
from dualpace.plan.checkpoint.fields import Checkpoint, CheckpointError
from dualpace.plan.checkpoint.gguf import read_gguf

__all__ = ["Checkpoint", "CheckpointError", "read_checkpoint"]


def read_checkpoint(path: Path) -> Checkpoint:
    """Read the shape of the checkpoint at `path`, a folder or a .gguf file. Raises CheckpointError."""
    try:
        return read_gguf(path) if path.suffix == ".gguf" else read_config(path / "config.json")
    except OSError as error:
        raise CheckpointError(f"{error.filename or path}: {error.strerror or error}") from error
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(map(str, first["loc"]))
        raise CheckpointError(f"{path}: {field} {first['input']!r}: {first['msg']}") from error
