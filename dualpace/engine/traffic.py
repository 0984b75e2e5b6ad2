"""What a transport over a network has carried, and how its connections have ended."""

from collections import Counter
from dataclasses import dataclass, field

FAULTS = ("closed", "unreachable", "timeout", "queue", "access", "torn", "forged")
"""Why connections end: the engine's process or host is gone, the queue pair has failed, what was read is no sense."""


@dataclass(slots=True)
class Traffic:
    """Operations posted, their bytes, the doorbells that they took, connections and the faults that ended them."""

    writes: int = 0
    reads: int = 0
    written_bytes: int = 0
    read_bytes: int = 0
    doorbells: int = 0
    connections: int = 0
    faults: Counter[str] = field(default_factory=Counter)
