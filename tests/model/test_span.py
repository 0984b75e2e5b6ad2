"""A text has no fewer tokens than its length and the longest token allow."""

import json
import unicodedata

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers

from dualpace.model.span import most_bytes

LETTERS = pre_tokenizers.ByteLevel.alphabet()


def byte_level(*words: str) -> tokenizers.Tokenizer:
    """Byte-level BPE with `words` of ASCII letters."""
    vocabulary, merges = {letter: i for i, letter in enumerate(LETTERS)}, []
    for word in words:
        for end in range(2, len(word) + 1):
            if word[:end] not in vocabulary:
                vocabulary[word[:end]] = len(vocabulary)
                merges.append((word[: end - 1], word[end - 1]))
    made = tokenizers.Tokenizer(models.BPE(vocabulary, merges))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    return made


def byte_fallback(**options: object) -> tokenizers.Tokenizer:
    vocabulary = {f"<0x{byte:02X}>": byte for byte in range(256)} | {"\u2581": 256, "\u2581\u2581": 257}
    made = tokenizers.Tokenizer(
        models.BPE(vocabulary, [("\u2581", "\u2581")], **({"byte_fallback": True, "unk_token": None} | options))
    )
    made.normalizer = normalizers.Replace(" ", "\u2581")
    made.decoder = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()])
    return made


def bound(made: tokenizers.Tokenizer) -> int | None:
    return most_bytes(json.loads(made.to_str()))


def test_the_bound_is_the_longest_token():
    assert bound(byte_level("abcdef")) == 6
    assert bound(byte_fallback()) == 6  # <0x00> as text
    made = byte_level("abc")
    made.add_special_tokens(["<|end of text|>"])
    assert bound(made) == 15


COMPOSED = byte_level("abc")
COMPOSED.normalizer = normalizers.NFC()


@settings(max_examples=200, deadline=None)
@given(st.text(st.sampled_from("abcde \u1100\u1161\u11a8\u0308\u0301\u03b9\u65e5")))
@pytest.mark.parametrize(
    "made", [byte_level("abcde"), byte_fallback(), COMPOSED], ids=["bytes", "fallback", "composed"]
)
def test_no_text_has_fewer_tokens_than_the_bound_says(made: tokenizers.Tokenizer, text: str):
    tokens = len(made.encode(text, add_special_tokens=False).ids)
    assert len(text.encode()) <= bound(made) * tokens


def test_composition_leaves_a_third_at_least():
    def size(form: str, code: int) -> int:
        return len(unicodedata.normalize(form, chr(code)).encode())

    codes = [code for code in range(0x30000) if not 0xD800 <= code < 0xE000]
    assert max(size("NFD", code) / size("NFC", code) for code in codes) == 3


def changed(made: tokenizers.Tokenizer, **parts: object) -> tokenizers.Tokenizer:
    for name, part in parts.items():
        setattr(made, name, part)
    return made


def swallowing() -> tokenizers.Tokenizer:
    made = byte_level()
    made.add_special_tokens([AddedToken("<end>", rstrip=True)])
    return made


@pytest.mark.parametrize(
    "made",
    [
        swallowing(),
        changed(byte_level(), normalizer=normalizers.NFKC()),
        changed(byte_level(), normalizer=normalizers.Replace("a", "")),
        changed(byte_level(), pre_tokenizer=pre_tokenizers.Split(" ", "removed")),
        changed(byte_level(), pre_tokenizer=pre_tokenizers.WhitespaceSplit()),
        changed(byte_level(), model=models.BPE({"a": 0}, [])),
        byte_fallback(byte_fallback=False),
    ],
    ids=["rstrip", "nfkc", "replace", "removed", "whitespace", "letters", "unknown"],
)
def test_where_text_can_vanish_there_is_no_bound(made: tokenizers.Tokenizer):
    assert bound(made) is None
