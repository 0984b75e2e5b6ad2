"""API keys at work: who a request is from, and whether its key may have another one now."""

import hashlib
import hmac
import logging
import math
import time
from base64 import b64decode
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from dualpace.appliance.errors import rate_limited
from dualpace.plan.api_keys import ApiKey, read_api_keys
from dualpace.plan.manifest import BundleError

# Where a request's scope has its account.
ACCOUNT = "dualpace.account"
# How often the file is looked at for changes, at most.
LOOK_S = 1.0

logger = logging.getLogger(__name__)


class Account:
    """What one key uses at this frontend. Tokens flow back evenly, up to a minute's; `clock` gives seconds."""

    def __init__(self, limits: ApiKey, clock: Callable[[], float]) -> None:
        self.limits = limits
        # In the log, where the key itself has no place.
        self.name = hashlib.sha256(limits.key).hexdigest()[:8]
        self._clock = clock
        self._running = 0
        self._tokens = float(limits.tokens_per_minute or 0)
        self._refilled = clock()

    @contextmanager
    def request(self) -> Iterator[None]:
        """One request of the key, until it is answered. Raises ApiError where it may have none now."""
        most = self.limits.requests
        if most is not None and self._running >= most:
            raise rate_limited(f"This key has {self._running} requests under way, and may have {most} at once", 1)
        rate = self.limits.tokens_per_minute
        if rate is not None and self._left(rate) <= 0:
            wait = math.ceil((1 - self._tokens) * 60 / rate)
            raise rate_limited(f"This key has used its {rate} tokens a minute; there are more in {wait} s", wait)
        self._running += 1
        try:
            yield
        finally:
            self._running -= 1

    def spend(self, tokens: int) -> None:
        """Count tokens that a request has read or written. What it takes beyond the limit delays the next one."""
        if rate := self.limits.tokens_per_minute:
            self._tokens = self._left(rate) - tokens

    def _left(self, rate: int) -> float:
        now = self._clock()
        self._tokens = min(rate, self._tokens + (now - self._refilled) * rate / 60)
        self._refilled = now
        return self._tokens


class Keys:
    """The accounts of a key file, which follow its changes. False where everyone may ask."""

    def __init__(self, file: str, keys: Sequence[ApiKey], clock: Callable[[], float] = time.monotonic) -> None:
        """`keys` are those in `file`, as read before."""
        self._file = file
        self._clock = clock
        self._accounts = {key.key: Account(key, clock) for key in keys}
        self._seen = self._stamp()
        self._looked = clock()

    def __bool__(self) -> bool:
        return bool(self._accounts)

    def account(self, token: bytes) -> Account | None:
        """The account of the key that `token` is. Every key is compared, so that the time tells nothing about any."""
        self._follow()
        found = [account for key, account in self._accounts.items() if hmac.compare_digest(token, key)]
        return found[0] if found else None

    def _follow(self) -> None:
        """Read the file again if it has changed. While it cannot be read, the keys stay that there were."""
        now = self._clock()
        if not self._accounts or now - self._looked < LOOK_S:
            return
        self._looked = now
        stamp = self._stamp()
        if stamp == self._seen:
            return
        self._seen = stamp
        try:
            keys = read_api_keys(self._file)
        except BundleError as error:
            logger.error("the keys stay as they were: %s", error)
            return
        before = self._accounts
        kept = {account.limits: account for account in before.values()}
        self._accounts = {key.key: kept.get(key) or Account(key, self._clock) for key in keys}
        logger.warning("%s has changed: %d keys now, %d before", self._file, len(self._accounts), len(before))

    def _stamp(self) -> tuple[int, ...]:
        try:
            found = Path(self._file).stat()
        except OSError:
            return ()
        return found.st_ino, found.st_size, found.st_mtime_ns


def key_in(authorization: str) -> bytes:
    """The key that a header has: as a bearer's, or as the password of anyone; empty if it has none."""
    scheme, _, given = authorization.partition(" ")
    credentials = given.strip().encode("latin-1")
    match scheme.lower():
        case "bearer":
            return credentials
        case "basic":
            with suppress(ValueError):
                return b64decode(credentials, validate=True).partition(b":")[2]
    return b""
