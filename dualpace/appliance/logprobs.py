"""Log probabilities of tokens, and how tokens are written beside them."""

from typing import NamedTuple

from dualpace.appliance.deployment import Deployment

# What JSON has for minus infinity.
FLOOR = -9999.0


class Spelling(NamedTuple):
    """A token as text, and the bytes that it adds to the completion; None for a special token, which adds none."""

    text: str
    bytes: list[int] | None


class Ranked(NamedTuple):
    """A token and its log probability; None for a prompt's first token, which nothing comes before."""

    token: Spelling
    logprob: float | None


class TokenLogprob(NamedTuple):
    """A token, the most probable ones in its place, and where in the text it begins, in characters."""

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


def logprob_of(
    deployment: Deployment, token: int, logprob: float | None, top: tuple[tuple[int, float], ...], offset: int
) -> TokenLogprob:
    """What is said of a token; `top` are ids with their log probabilities."""

    def ranked(token: int, logprob: float | None) -> Ranked:
        return Ranked(spelling(deployment, token), None if logprob is None else max(logprob, FLOOR))

    return TokenLogprob(ranked(token, logprob), tuple(ranked(*other) for other in top), offset)
