"""The bundle as the frontend needs it, read once at start."""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from dualpace.model.chat import ChatError, ChatTemplate
from dualpace.model.tokenizer import Detokenizer, Tokenizer, TokenizerError
from dualpace.plan.api_keys import ApiKey, read_api_keys
from dualpace.plan.manifest import GENERATION, TOKENIZER, BundleError, Generation, read_manifest
from dualpace.plan.plan import Plan


class TextStream(Protocol):
    """Turns the tokens of one choice into text as they come."""

    def push(self, token: int) -> str:
        """The text that `token` completes."""

    def piece(self, token: int) -> str | None:
        """The text of `token` if that depends on nothing, in place of `push`; None if it does."""

    def flush(self) -> str:
        """What is held back, at the end of the text."""


class IdText:
    """The text of a model without a tokenizer: each token's id and a space."""

    def push(self, token: int) -> str:
        """The text of `token`."""
        return f"{token} "

    piece = push

    def flush(self) -> str:
        """Nothing is ever held back."""
        return ""


@dataclass(frozen=True, slots=True)
class Deployment:
    """One served model. `created` is in seconds since the epoch; without `api_keys` everyone may ask.

    A model with random weights may have no tokenizer; it then reads and writes token ids.
    """

    plan: Plan
    fingerprint: str
    generation: Generation
    tokenizer: Tokenizer | None
    chat: ChatTemplate
    api_keys: tuple[ApiKey, ...]
    created: int

    @property
    def name(self) -> str:
        """The model's name in the API."""
        return self.plan.serving.model_name

    @property
    def max_context(self) -> int:
        """Longest prompt and completion together, in tokens: the limit that the engine was built for."""
        return self.plan.schedule.max_context

    @property
    def vocab(self) -> int:
        """Token ids below this one can be read and written; a model's table may have padding rows above."""
        vocab = self.plan.model.vocab
        return vocab if self.tokenizer is None else min(vocab, self.tokenizer.id_bound)

    def text_stream(self, *, continues: bool) -> TextStream:
        """The text of one choice, which `continues` other text or stands alone."""
        return IdText() if self.tokenizer is None else Detokenizer(self.tokenizer, continues=continues)

    def text_of(self, tokens: list[int]) -> str:
        """The text of a prompt given as token ids."""
        stream = self.text_stream(continues=False)
        return "".join(map(stream.push, tokens)) + stream.flush()


def load(bundle: Path) -> Deployment:
    """Read what the frontend needs from `bundle`. Raises BundleError."""
    manifest = read_manifest(bundle)
    try:
        generation = Generation.model_validate_json((bundle / GENERATION).read_bytes())
    except OSError as error:
        raise BundleError(f"{error.filename}: {error.strerror}; build the spec again") from error
    except ValueError as error:
        raise BundleError(f"{bundle / GENERATION} was not written by this version; build the spec again") from error
    try:
        tokenizer = Tokenizer(bundle) if (bundle / TOKENIZER).is_file() else None
        chat = ChatTemplate.load(bundle, tokenizer) if tokenizer else ChatTemplate(None, {})
    except (TokenizerError, ChatError) as error:
        raise BundleError(str(error)) from error
    return Deployment(
        plan=manifest.plan,
        fingerprint=f"fp_{manifest.digest[:12]}",
        generation=generation,
        tokenizer=tokenizer,
        chat=chat,
        api_keys=read_api_keys(manifest.plan.serving.api_key_file),
        created=int(time.time()),
    )
