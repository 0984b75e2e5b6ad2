"""Text <-> token ids on the serving side, and text as tokens arrive. Needs `tokenizers` alone."""

import codecs
import json
import re
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import tokenizers

from dualpace.model.error import ModelError
from dualpace.model.span import most_bytes
from dualpace.plan.manifest import GENERATION, TOKENIZER, Generation


class TokenizerError(ModelError):
    """A tokenizer that cannot be used; the message names the file and the remedy."""


class Tokenizer:
    """The tokenizer of a bundle. `most_bytes` is what one token takes up of a text at most, None if that is unknown.

    `pieces` is what each token adds to the text: text if it is whole characters, else bytes.
    """

    def __init__(self, bundle: Path) -> None:
        """Read the tokenizer in `bundle`. Raises TokenizerError."""
        file = bundle / TOKENIZER
        if not file.is_file():
            raise TokenizerError(f"{bundle} has no {TOKENIZER}: the model has random weights and takes token ids only")
        generation = Generation.model_validate_json((bundle / GENERATION).read_bytes())
        self._bos = generation.bos_token if generation.add_bos else None
        try:
            text = file.read_text(encoding="utf-8")
            self._tokenizer = tokenizers.Tokenizer.from_str(text)
        except Exception as error:  # the binding raises Exception itself
            raise TokenizerError(f"{file} is not a tokenizer ({error}): build the spec again") from error
        # A length limit saved with a tokenizer would cut prompts silently.
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        description = json.loads(text)
        self._special = {added["id"] for added in description["added_tokens"] if added["special"]}
        self._decode_token, self._strip = token_decoder(description["decoder"], file)
        self.pieces: Mapping[int, str | bytes] = _Pieces(self.token_bytes)
        self.most_bytes = most_bytes(description)

    @cached_property
    def id_bound(self) -> int:
        """The largest token id + 1; ids below may have no token, and the model's vocabulary may be padded beyond."""
        return max(self._tokenizer.get_vocab(with_added_tokens=True).values(), default=-1) + 1

    def encode(self, text: str, *, add_special: bool = True) -> list[int]:
        """Token ids of `text`; `add_special` puts the BOS before it, if the model wants one and it is not there yet."""
        # The batch of one is encoded without the GIL.
        [encoding] = self._tokenizer.encode_batch_fast([text], add_special_tokens=False)
        ids = encoding.ids
        if add_special and self._bos is not None and ids[:1] != [self._bos]:
            ids.insert(0, self._bos)
        return ids

    def decode(self, tokens: Iterable[int], *, continues: bool = True) -> str:
        """Text of `tokens` without special tokens, exactly as a Detokenizer streams it.

        `continues`: they follow other text, so a space before the first word is kept. A run of bytes that is not UTF-8
        becomes one U+FFFD for each maximal invalid part.
        """
        stream = Detokenizer(self, continues=continues)
        return "".join(map(stream.push, tokens)) + stream.flush()

    def token_text(self, token: int) -> str | None:
        """The vocabulary's entry for `token`, special tokens included; None outside the vocabulary."""
        text = self._tokenizer.id_to_token(token)
        return text if text is None else str(text)

    def token_bytes(self, token: int) -> bytes:
        """What `token` adds to the text: whole characters or a part of one, nothing for a special or unknown token."""
        text = None if token in self._special else self._tokenizer.id_to_token(token)
        return b"" if text is None else self._decode_token(text)

    @property
    def leading_spaces(self) -> int:
        """Spaces that the vocabulary's convention puts before a text, to be dropped where a text begins."""
        return self._strip


class _Pieces(dict[int, str | bytes]):
    """Tokens that have been seen; decoding one again would take as long as all else that is done for it."""

    def __init__(self, token_bytes: Callable[[int], bytes]) -> None:
        super().__init__()
        self._token_bytes = token_bytes

    def __missing__(self, token: int) -> str | bytes:
        raw = self._token_bytes(token)
        try:
            piece: str | bytes = raw.decode()
        except UnicodeDecodeError:
            piece = raw
        self[token] = piece
        return piece


class Detokenizer:
    """Text of one request's tokens as they come; at most three bytes, an unfinished character, are held back."""

    def __init__(self, tokenizer: Tokenizer, *, continues: bool = True) -> None:
        self._pieces = tokenizer.pieces
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        self._in_character = False
        self._strip = 0 if continues else tokenizer.leading_spaces

    def push(self, token: int) -> str:
        """The text that `token` completes."""
        piece = self._pieces[token]
        if isinstance(piece, bytes) or self._in_character:
            piece = self._utf8.decode(piece if isinstance(piece, bytes) else piece.encode())
            self._in_character = self._utf8.getstate()[0] != b""
        return self._begin(piece) if self._strip else piece

    def piece(self, token: int) -> str | None:
        """The text of `token` if that depends on nothing, in place of `push`; None if it does."""
        piece = self._pieces[token]
        return None if self._in_character or self._strip or isinstance(piece, bytes) else piece

    def flush(self) -> str:
        """What is held back, at the end of the text: U+FFFD for what is no character, or nothing."""
        return self._utf8.decode(b"", final=True)

    def _begin(self, text: str) -> str:
        while self._strip and text:
            if text[0] != " ":
                self._strip = 0
                break
            text = text[1:]
            self._strip -= 1
        return text


# What tokenizer.json says for a SentencePiece vocabulary: spaces are written U+2581, unknown characters as bytes.
_SENTENCEPIECE = ["Replace", "ByteFallback", "Fuse"]
_SPACES = {"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "}
_NO_STRIP = {"type": "Strip", "content": " ", "start": 0, "stop": 0}
_BYTE_TOKEN = re.compile("<0x([0-9A-Fa-f]{2})>")


def token_decoder(decoder: dict[str, Any] | None, file: Path) -> tuple[Callable[[str], bytes], int]:
    """A vocabulary entry's bytes, and the leading spaces of a text, from tokenizer.json's decoder.

    Raises TokenizerError for a decoder whose tokens cannot be turned into bytes one by one.
    """
    steps = decoder["decoders"] if decoder and decoder["type"] == "Sequence" else [decoder] if decoder else []
    kinds = [step["type"] for step in steps]
    if kinds == ["ByteLevel"]:
        return _byte_level, 0
    strip: dict[str, Any] = next((step for step in steps if step["type"] == "Strip"), _NO_STRIP)
    if (
        kinds not in (_SENTENCEPIECE, [*_SENTENCEPIECE, "Strip"])
        or steps[0] != _SPACES
        or strip != _NO_STRIP | {"start": strip["start"]}
    ):
        raise TokenizerError(f"{file} decodes by {kinds}, which is not supported: byte-level and byte-fallback BPE are")
    return _byte_fallback, int(strip["start"])


def _byte_fallback(token: str) -> bytes:
    match = _BYTE_TOKEN.fullmatch(token)
    return bytes.fromhex(match[1]) if match else token.replace("\u2581", " ").encode()


def _byte_characters() -> dict[str, int]:
    """Byte-level BPE's alphabet: a printable Latin-1 byte is itself, the others follow U+0100 in order (GPT-2)."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(others)}


_BYTE_OF = _byte_characters()


def _byte_level(token: str) -> bytes:
    # An added token may hold characters outside the alphabet: then it stands for its own text.
    if all(character in _BYTE_OF for character in token):
        return bytes(_BYTE_OF[character] for character in token)
    return token.encode()
