"""What a checkpoint says of generation: special tokens, sampling defaults and chat template."""

import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import tokenizers

from dualpace.model.error import ModelError
from dualpace.plan.manifest import Generation
from dualpace.plan.structs import MAX_STOP_TOKENS

_SAMPLING = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
# What every request must keep, so its model's defaults too.
_LIMITS: dict[str, tuple[Callable[[float], bool], str]] = {
    "temperature": (lambda value: 0 <= value <= 100, "from 0 to 100"),
    "top_p": (lambda value: 0 < value <= 1, "above 0 and at most 1"),
    "top_k": (lambda value: value < 2**31, "below 2^31"),
    "min_p": (lambda value: 0 <= value <= 1, "from 0 to 1"),
    "repetition_penalty": (lambda value: 0.01 <= value <= 100, "from 0.01 to 100"),
}
_GGUF_SAMPLING = {
    "general.sampling.temp": "temperature",
    "general.sampling.top_p": "top_p",
    "general.sampling.top_k": "top_k",
    "general.sampling.min_p": "min_p",
    "general.sampling.penalty_repeat": "repetition_penalty",
}
_GGUF_EOS = ("tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id")
# GGUF often drops the list of the generation config: these end a turn wherever a vocabulary has them.
_END_OF_TURN = ("<|eot_id|>", "<|im_end|>", "<end_of_turn>")


class GenerationError(ModelError):
    """A file about generation that cannot be read; the message names the file and the remedy."""


def from_folder(folder: Path, tokenizer: tokenizers.Tokenizer | None) -> Generation:
    """Join generation_config.json, config.json and the tokenizer's own settings. Raises GenerationError."""
    settings = _json(folder / "tokenizer_config.json")
    special = _json(folder / "special_tokens_map.json") | settings
    config = _json(folder / "config.json")
    sources = (_json(folder / "generation_config.json"), config, config.get("text_config") or {})

    bos = [_token_id(special.get("bos_token"), tokenizer), *_ids(sources, "bos_token_id")]
    eos = [_token_id(special.get("eos_token"), tokenizer), *_ids(sources, "eos_token_id")]
    bos_token = next((token for token in bos if token is not None), None)
    return Generation(
        bos_token=bos_token,
        add_bos=_adds_bos(settings.get("add_bos_token"), bos_token, tokenizer),
        eos_tokens=_ordered(eos),
        **{key: sources[0][key] for key in _SAMPLING if sources[0].get(key) is not None},
    )


def from_gguf(metadata: Mapping[str, Any], tokenizer: tokenizers.Tokenizer) -> Generation:
    """Read a GGUF's metadata; end-of-turn tokens that its vocabulary has count as EOS."""
    bos_token = metadata.get("tokenizer.ggml.bos_token_id")
    turns = (tokenizer.token_to_id(text) for text in _END_OF_TURN)
    return Generation(
        bos_token=bos_token,
        add_bos=_adds_bos(metadata.get("tokenizer.ggml.add_bos_token"), bos_token, tokenizer),
        eos_tokens=_ordered([*(metadata.get(key) for key in _GGUF_EOS), *turns]),
        **{field: metadata[key] for key, field in _GGUF_SAMPLING.items() if key in metadata},
    )


def check(generation: Generation, vocab: int, source: Path) -> None:
    """Raise GenerationError for what would make every request that leaves it to the model an error, by name.

    `vocab` is the model's; `source` is where `generation` comes from.
    """
    tokens = [("BOS", generation.bos_token), *(("EOS", token) for token in generation.eos_tokens)]
    faults = [
        f"{kind} token {token} is outside the model's vocabulary of {vocab}"
        for kind, token in tokens
        if token is not None and not 0 <= token < vocab
    ]
    ends = len(generation.eos_tokens)
    if ends > MAX_STOP_TOKENS:
        faults.append(f"{ends} EOS tokens are more than the {MAX_STOP_TOKENS} that can end a text")
    faults += [
        f"{name} {getattr(generation, name)} is not {limit}"
        for name, (sound, limit) in _LIMITS.items()
        if not sound(getattr(generation, name))
    ]
    if faults:
        raise GenerationError(f"{source}: {'; '.join(faults)}: correct its generation config")


def chat_template(folder: Path) -> str | None:
    """The default chat template of a checkpoint, None if it has none. Raises GenerationError."""
    file = folder / "chat_template.jinja"
    if file.is_file():
        return file.read_text(encoding="utf-8")
    for name in ("tokenizer_config.json", "chat_template.json"):
        template = _json(folder / name).get("chat_template")
        if isinstance(template, list):
            named = {entry["name"]: entry["template"] for entry in template}
            if "default" not in named:
                raise GenerationError(
                    f"{folder / name} has chat templates {', '.join(sorted(named))} but no default: "
                    "name one in serving.chat_template"
                )
            template = named["default"]
        if template is not None:
            return str(template)
    return None


def _json(file: Path) -> dict[str, Any]:
    if not file.is_file():
        return {}
    try:
        content = json.loads(file.read_bytes())
    except ValueError as error:
        raise GenerationError(f"{file} is not JSON ({error}): download it again") from error
    if not isinstance(content, dict):
        raise GenerationError(f"{file} does not hold an object: download it again")
    return content


def _token_id(token: Any, tokenizer: tokenizers.Tokenizer | None) -> int | None:
    """Id of a token that a tokenizer's settings name, as text or as an object with its text."""
    text = token.get("content") if isinstance(token, dict) else token
    return tokenizer.token_to_id(text) if tokenizer is not None and text is not None else None


def _ids(sources: Iterable[Mapping[str, Any]], key: str) -> list[int]:
    values = (source.get(key) for source in sources)
    return [token for value in values if value is not None for token in (value if isinstance(value, list) else [value])]


def _ordered(tokens: Iterable[int | None]) -> tuple[int, ...]:
    """Without repeats: the first, which is the tokenizer's own, and then the others by id."""
    first, *others = dict.fromkeys(token for token in tokens if token is not None) or [None]
    return () if first is None else (first, *sorted(token for token in others if token is not None))


def _adds_bos(stated: Any, bos: int | None, tokenizer: tokenizers.Tokenizer | None) -> bool:
    """Whether a prompt begins with BOS: as stated, else as the tokenizer does it."""
    if bos is None or tokenizer is None:
        return False
    if isinstance(stated, bool):
        return stated
    plain = tokenizer.encode("a", add_special_tokens=False).ids
    return plain[:1] != [bos] and tokenizer.encode("a").ids[:1] == [bos]
