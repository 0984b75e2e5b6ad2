"""The base of every value that crosses an arrow of the line: immutable and strict about its fields."""

from pydantic import BaseModel, ConfigDict


class Frozen(BaseModel):
    """A frozen value that refuses unknown fields."""

    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())
