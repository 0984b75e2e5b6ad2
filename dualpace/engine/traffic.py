"""What a transport over a network has carried, and how its connections have ended."""

from collections import Counter
from dataclasses import dataclass, field

FAULTS = ("closed", "unreachable", "timeout", "queue", "access", "torn", "forged")
"""Why connections end: the engine's process or host is gone, the queue pair has failed, what was read is no sense."""

FAILURES = ("unreachable", "tls", "greeting", "refused", "busy", "replaced", "link", "local")
"""Why attempts to come in fail: nobody answers; the certificate or the encryption; what comes is no sense; one side
refuses the other; no ring is free; another bundle is served; the devices do not reach each other; device, files or
memory of this host."""


@dataclass(slots=True)
class Traffic:
    """Operations posted, their bytes, the doorbells that they took, connections and the faults that ended them.

    Before them come attempts, the first to fetch the bundle; each fails, or is let in.
    """

    writes: int = 0
    reads: int = 0
    written_bytes: int = 0
    read_bytes: int = 0
    doorbells: int = 0
    attempts: int = 0
    failures: Counter[str] = field(default_factory=Counter)
    connections: int = 0
    faults: Counter[str] = field(default_factory=Counter)
