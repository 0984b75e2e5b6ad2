"""API keys at work: who a request is from, and whether its key may have another one now."""

import asyncio
import hmac
import math
import time
from base64 import b64decode
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress

from dualpace.appliance.errors import rate_limited
from dualpace.appliance.ledger import Ledger, name_of
from dualpace.engine.followed import Followed
from dualpace.plan.api_keys import ApiKey, read_api_keys

# Where a request's scope has its account.
ACCOUNT = "dualpace.account"
# How often the file is looked at for changes, and the ledger for what other frontends spend.
LOOK_S = 1.0


class Account:
    """What one key uses. Tokens flow back evenly, up to a minute's; `clock` gives seconds."""

    def __init__(self, limits: ApiKey, ledger: Ledger, clock: Callable[[], float]) -> None:
        self.limits = limits
        self._ledger = ledger
        self._key = name_of(limits.key)
        # In the log, where the key itself has no place.
        self.name = self._key[:4].hex()
        self._clock = clock
        self._left = float(limits.tokens_per_minute or 0)
        self._spent = ledger.totals(self._key)[1]
        self._settled = clock()

    @contextmanager
    def request(self) -> Iterator[None]:
        """One request of the key, until it is answered. Raises ApiError where it may have none now."""
        running, _ = self._ledger.totals(self._key)
        most, rate = self.limits.requests, self.limits.tokens_per_minute
        if most is not None and running >= most:
            raise rate_limited(f"This key has {running} requests under way, and may have {most} at once", 1)
        self.settle()
        if rate is not None and self._left <= 0:
            wait = math.ceil((1 - self._left) * 60 / rate)
            raise rate_limited(f"This key has used its {rate} tokens a minute; there are more in {wait} s", wait)
        self._ledger.add(self._key, requests=1)
        try:
            yield
        finally:
            self._ledger.add(self._key, requests=-1)

    def spend(self, tokens: int) -> None:
        """Count tokens that a request has read or written. What it takes beyond the limit delays the next one."""
        self.settle()  # what flowed back before this is no more than a minute's
        self._ledger.add(self._key, tokens=tokens)

    def settle(self) -> None:
        """Take account of what was spent, here and elsewhere, and of the time."""
        rate = self.limits.tokens_per_minute
        if rate is None:
            return
        now, spent = self._clock(), self._ledger.totals(self._key)[1]
        refill = (now - self._settled) * rate / 60
        self._left = min(rate, self._left + refill - max(0, spent - self._spent))
        self._settled, self._spent = now, spent


class Keys:
    """The accounts of a key file, which follow its changes. False where everyone may ask."""

    def __init__(
        self, file: str, keys: Sequence[ApiKey], ledger: Ledger, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`keys` are those in `file`, as read before."""
        self._file = file
        self._ledger = ledger
        self._clock = clock
        self._accounts: dict[bytes, Account] = {}
        self._followed = Followed(self._read, file)
        self._open(keys)

    def __bool__(self) -> bool:
        return bool(self._accounts)

    def account(self, token: bytes) -> Account | None:
        """The account of the key that `token` is. Every key is compared, so that the time tells nothing about any."""
        found = [account for key, account in self._accounts.items() if hmac.compare_digest(token, key)]
        return found[0] if found else None

    async def watch(self) -> None:
        """Follow the file and the ledger, until cancelled."""
        while self._accounts:
            await asyncio.sleep(LOOK_S)
            self.look()

    def look(self) -> None:
        """Settle accounts, and follow the file. While that cannot be read, the keys stay that there were."""
        if self._ledger.is_shared:
            for account in self._accounts.values():
                account.settle()
        self._followed.follow()

    def _read(self) -> str:
        keys, before = read_api_keys(self._file), len(self._accounts)
        self._open(keys)
        return f"{len(keys)} keys now, {before} before"

    def _open(self, keys: Sequence[ApiKey]) -> None:
        kept = {account.limits: account for account in self._accounts.values()}
        self._ledger.open([name_of(key.key) for key in keys])
        self._accounts = {key.key: kept.get(key) or Account(key, self._ledger, self._clock) for key in keys}


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
