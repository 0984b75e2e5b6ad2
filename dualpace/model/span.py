"""How much text a token can stand for, so that a text far too long is known as such before it is tokenised."""

from typing import Any

_SPACE = "\u2581"
# Canonical composition leaves a third of the bytes at least, as of Hangul written in letters.
_COMPOSITION = 3


def most_bytes(description: dict[str, Any]) -> int | None:
    """Most bytes of UTF-8 that one token of the tokenizer.json `description` takes up; None where no bound is known.

    There is one if all text has tokens, byte by byte if need be, and nothing is dropped on the way to them.
    """
    model, added = description["model"], description["added_tokens"]
    vocabulary = model["vocab"]
    factor = _shrinks_by(description["normalizer"])
    if not isinstance(vocabulary, dict):  # but a list of unigrams and their scores
        return None
    if factor is None or not _keeps_text(description["pre_tokenizer"]):
        return None
    if any(token["lstrip"] or token["rstrip"] for token in added):  # these swallow any number of spaces
        return None
    if _is_byte_level(description["decoder"]):
        # A character is a byte; 256 tokens of one character are the alphabet.
        complete = sum(len(token) == 1 for token in vocabulary) >= 256
        longest = max(map(len, vocabulary))
    else:
        complete = model.get("byte_fallback", False) and all(f"<0x{byte:02X}>" in vocabulary for byte in range(256))
        longest = max(len(token.replace(_SPACE, " ").encode()) for token in vocabulary)
    if not complete:
        return None
    return factor * max(longest, *(len(token["content"].encode()) for token in added), 1)


def _is_byte_level(decoder: dict[str, Any] | None) -> bool:
    return any(step["type"] == "ByteLevel" for step in _steps(decoder, "decoders"))


def _shrinks_by(normalizer: dict[str, Any] | None) -> int | None:
    """By what factor text can shrink before tokens are looked for; None if unknown."""
    factor = 1
    for step in _steps(normalizer, "normalizers"):
        match step:
            case {"type": "Prepend"} | {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}:
                pass
            case {"type": "NFC"}:
                factor *= _COMPOSITION
            case _:
                return None
    return factor


def _keeps_text(pre_tokenizer: dict[str, Any] | None) -> bool:
    return all(
        step["type"] in ("ByteLevel", "Metaspace", "Digits")
        or (step["type"] == "Split" and step["behavior"] != "Removed")
        for step in _steps(pre_tokenizer, "pretokenizers")
    )


def _steps(part: dict[str, Any] | None, of: str) -> list[dict[str, Any]]:
    if part is None:
        return []
    return list(part[of]) if part["type"] == "Sequence" else [part]
