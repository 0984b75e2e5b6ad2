"""The API keys of a deployment, one a line of a file outside its bundle: who serves, asks or lints reads them alike."""

import re
from pathlib import Path
from typing import NamedTuple

from dualpace.plan.manifest import BundleError

# A deployment's; frontends tell each other what each of them uses.
MOST_KEYS = 4096
REQUESTS, TOKENS = "requests", "tokens_per_minute"


class ApiKey(NamedTuple):
    """A key and what may be had with it: requests at once, tokens a minute. None: no limit of its own."""

    key: bytes
    requests: int | None = None
    tokens_per_minute: int | None = None


def parse_api_keys(text: bytes) -> tuple[ApiKey, ...]:
    """The keys in `text`: lines like `KEY requests=8 tokens_per_minute=100000`; empty lines and those with # are none.

    Raises ValueError, whose message names the line and not the key.
    """
    keys: dict[bytes, ApiKey] = {}
    for number, line in enumerate(text.splitlines(), 1):
        key, *words = line.split() or [b"#"]
        if key.startswith(b"#"):
            continue
        if key in keys:
            raise ValueError(f"line {number} has a key again that an earlier line has; remove one of them")
        if len(keys) == MOST_KEYS:
            raise ValueError(f"line {number} has one key more than the {MOST_KEYS} that are possible")
        keys[key] = ApiKey(key, **dict(_limit(word.decode("latin-1"), number) for word in words))
    return tuple(keys.values())


def read_api_keys(file: str) -> tuple[ApiKey, ...]:
    """The keys in `serving.api_key_file`, at least one; none where no file is named. Raises BundleError."""
    if not file:
        return ()
    try:
        keys = parse_api_keys(Path(file).read_bytes())
    except OSError as error:
        raise BundleError(f"serving.api_key_file {file}: {error.strerror}; mount it or change the spec") from error
    except ValueError as error:
        raise BundleError(f"serving.api_key_file {file}: {error}") from error
    if not keys:
        raise BundleError(f"serving.api_key_file {file} holds no key; write one a line")
    return keys


def _limit(word: str, line: int) -> tuple[str, int]:
    name, _, value = word.partition("=")
    if name not in (REQUESTS, TOKENS) or not re.fullmatch("[1-9][0-9]{0,11}", value):
        raise ValueError(f"line {line} has more than a key, and limits are written {REQUESTS}=8 and {TOKENS}=100000")
    return name, int(value)
