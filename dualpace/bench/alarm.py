"""An alarm clock for an event loop, exact to tens of microseconds where the loop's own timers are to a millisecond."""

import asyncio
import ctypes
import os
import time
from collections.abc import Callable

_CLOCK_MONOTONIC = 1
_NONBLOCK_CLOEXEC = os.O_NONBLOCK | os.O_CLOEXEC
_ABSOLUTE = 1
_PAST_S = 1e-6  # a time of zero would disarm the timer


class _Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


class _Timer(ctypes.Structure):
    _fields_ = (("interval", _Timespec), ("value", _Timespec))


_libc = ctypes.CDLL(None, use_errno=True)


class Alarm:
    """Calls `ring` once at each time that it is set to, a value of `time.monotonic()`; setting it again moves it."""

    def __init__(self, loop: asyncio.AbstractEventLoop, ring: Callable[[], None]) -> None:
        """Raises OSError where the kernel gives no timer."""
        self._loop = loop
        self._ring = ring
        self._handle = _libc.timerfd_create(_CLOCK_MONOTONIC, _NONBLOCK_CLOEXEC)
        if self._handle < 0:
            raise OSError(ctypes.get_errno(), "timerfd_create")
        loop.add_reader(self._handle, self._fired)

    def set(self, at: float) -> None:
        """Ring at that time, or at once if it has passed."""
        seconds, fraction = divmod(max(at, _PAST_S), 1.0)
        timer = _Timer(_Timespec(0, 0), _Timespec(int(seconds), int(fraction * 1e9)))
        _libc.timerfd_settime(self._handle, _ABSOLUTE, ctypes.byref(timer), None)

    def close(self) -> None:
        """Never ring again."""
        if self._handle >= 0:
            self._loop.remove_reader(self._handle)
            os.close(self._handle)
            self._handle = -1

    def _fired(self) -> None:
        try:
            os.read(self._handle, 8)
        except BlockingIOError:  # it was set again meanwhile
            return
        self._ring()


class Ticker:
    """Calls `late` every `period_s` with the seconds by which the loop came late to it, having been busy elsewhere."""

    def __init__(self, loop: asyncio.AbstractEventLoop, period_s: float, late: Callable[[float], None]) -> None:
        self._period_s = period_s
        self._late = late
        self._due = time.monotonic() + period_s
        self._alarm = Alarm(loop, self._tick)
        self._alarm.set(self._due)

    def _tick(self) -> None:
        now = time.monotonic()
        self._late(now - self._due)
        self._due = now + self._period_s
        self._alarm.set(self._due)

    def close(self) -> None:
        """Tick no more."""
        self._alarm.close()
