"""Exit codes of the commands, and of the processes that serve."""

from enum import IntEnum


class Exit(IntEnum):
    """`USAGE` also says that a spec or bundle cannot be served anywhere.

    `HARDWARE` and `WEIGHTS` say that it could be, on another machine or with the checkpoint that it was built with.
    """

    CLEAN = 0
    FINDINGS = 1
    USAGE = 2
    INTERNAL = 3
    HARDWARE = 4
    WEIGHTS = 5
    INTERRUPTED = 130


# What a process ends with to say that it refuses, and that starting it again will not help.
REFUSALS = (Exit.USAGE, Exit.HARDWARE, Exit.WEIGHTS)
