"""Processes that do not outlive who started them."""

import ctypes
import os
import signal

_PR_SET_PDEATHSIG = 1


def die_with(parent: int) -> None:
    """In the child, before it runs: the death of `parent`, even by SIGKILL, ends it too."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:  # it died before it could be asked for
        os._exit(1)
