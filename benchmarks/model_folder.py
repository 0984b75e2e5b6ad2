"""A folder of a model without weights, as servers of every make read one: its config and a tokenizer."""

import json
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE

from dualpace.plan.plan import Model, Rope

CONFIG, TOKENIZER, SETTINGS = "config.json", "tokenizer.json", "tokenizer_config.json"
_DTYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}
_SPACE = "\u0120"  # as byte-level BPE writes it
_LETTERS = "abcdefghijklmnopqrstuvwxyz"


def write_folder(model: Model, folder: Path) -> Path:
    """Config and tokenizer of `model`, a Llama, whose every token is text."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / CONFIG).write_text(json.dumps(config(model), indent=1))
    words(model.vocab).save(str(folder / TOKENIZER))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": model.context}
    (folder / SETTINGS).write_text(json.dumps(settings))
    return folder


def config(model: Model) -> dict[str, Any]:
    """The model's sizes as the hub spells them."""
    rope = model.groups[0].rope
    return {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "dtype": _DTYPES[model.dtype],
        "hidden_size": model.hidden,
        "intermediate_size": model.intermediate,
        "num_hidden_layers": model.layers,
        "num_attention_heads": model.heads,
        "num_key_value_heads": model.kv_heads,
        "head_dim": model.head_dim,
        "hidden_act": "silu",
        "vocab_size": model.vocab,
        "max_position_embeddings": model.context,
        "rms_norm_eps": model.norm_eps,
        "rope_theta": rope.theta,
        "rope_scaling": _scaling(rope),
        "tie_word_embeddings": model.tie_embeddings,
        "bos_token_id": None,
        "eos_token_id": None,
    }


def _scaling(rope: Rope) -> dict[str, Any] | None:
    if rope.scaling == "none":
        return None
    assert rope.scaling == "llama3", rope
    return {
        "rope_type": "llama3",
        "factor": rope.factor,
        "original_max_position_embeddings": rope.original_context,
        "low_freq_factor": rope.low_freq_factor,
        "high_freq_factor": rope.high_freq_factor,
    }


def words(vocab: int) -> Tokenizer:
    """A byte-level tokenizer of `vocab` tokens: the alphabet of bytes, and words that no text is encoded to.

    Words are three or four letters and the space before, about what a token of English is.
    """
    tokens = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokens += [_word(number) for number in range(vocab - len(tokens))]
    tokenizer = Tokenizer(BPE({token: number for number, token in enumerate(tokens[:vocab])}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _word(number: int) -> str:
    """A word of its own for each number."""
    text = ""
    while number or len(text) < 3:
        number, letter = divmod(number, len(_LETTERS))
        text += _LETTERS[letter]
    return _SPACE + text
