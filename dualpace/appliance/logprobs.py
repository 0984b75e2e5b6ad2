"""Log probabilities of tokens, and how tokens are written beside them."""

from typing import NamedTuple

from dualpace.appliance.deployment import Deployment
from dualpace.engine.ring import TokenEvent

# What JSON has for minus infinity.
FLOOR = -9999.0


class Spelling(NamedTuple):
    """A token as text, and the bytes that it adds to the completion; None for a special token, which adds none."""

    text: str
    bytes: list[int] | None


class Ranked(NamedTuple):
    """A token and its log probability."""

    token: Spelling
    logprob: float


class TokenLogprob(NamedTuple):
    """A generated token, the most probable ones in its place, and where in the completion it begins, in characters."""

    chosen: Ranked
    top: tuple[Ranked, ...]
    offset: int


def spelling(deployment: Deployment, token: int) -> Spelling:
    """How `token` is written. Bytes that are no whole characters are escaped, after `bytes:`."""
    if deployment.tokenizer is None:
        text = deployment.text_of([token])
        return Spelling(text, list(text.encode()))
    raw = deployment.tokenizer.token_bytes(token)
    if not raw:
        return Spelling(deployment.tokenizer.token_text(token) or "", None)
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        text = "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)
    return Spelling(text, list(raw))


def logprob_of(deployment: Deployment, event: TokenEvent, offset: int) -> TokenLogprob:
    """What is said of the token of `event`."""

    def ranked(token: int, logprob: float) -> Ranked:
        return Ranked(spelling(deployment, token), max(logprob, FLOOR))

    return TokenLogprob(ranked(event.token, event.logprob), tuple(ranked(*top) for top in event.top), offset)
