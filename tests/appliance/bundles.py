"""Small bundles: a plan of a toy model, a byte-level tokenizer, and a chat template."""

from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers

from dualpace.build.compile import compile_libraries
from dualpace.build.store import Store
from dualpace.build.units import libraries
from dualpace.plan.manifest import (
    CHAT_TEMPLATE,
    FORMAT,
    GENERATION,
    HOST_RING,
    MANIFEST,
    TOKENIZER,
    Generation,
    Manifest,
)
from dualpace.plan.resolve import resolve
from dualpace.render.sources import render
from dualpace.spec.models import Spec

NAME = "toy"
CONTEXT = 256
VOCAB = 384
BOS, EOS = "<bos>", "<eos>"
TEMPLATE = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
CORPUS = ["the quick brown fox jumps over the lazy dog", "hello world, hello stop sign", "größer 日本語 🙂 naïve"]


def plan(**serving: Any) -> Any:
    shape = {
        "family": "llama", "layers": 2, "hidden": 64, "heads": 4, "kv_heads": 2,
        "intermediate": 128, "vocab": VOCAB, "context": CONTEXT,
    }  # fmt: skip
    spec = {
        "name": NAME,
        "model": {"shape": shape, "weights": {"random": 0}},
        "target": {"cpu": True, "kv_budget": "8MiB"},
        "scheduler": {"max_batch": 8, "max_queued_requests": 24},
        "serving": serving,
    }
    return resolve(Spec.model_validate(spec), Path())


class _Quiet:
    def step(self, text: str) -> None: ...

    def note(self, text: str) -> None: ...


def ring_library(store: Path) -> Path:
    """That of the plan, in `store`, which may hold it already."""
    sources = render(plan())
    [ring] = (library for library in libraries(plan(), sources) if library.output == HOST_RING)
    return compile_libraries([ring], sources, Store(store), _Quiet())[HOST_RING]


def tokenizer() -> tokenizers.Tokenizer:
    """Byte-level BPE with every byte, so that any text has tokens and characters split over them."""
    made = tokenizers.Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=320, special_tokens=[BOS, EOS], initial_alphabet=alphabet, show_progress=False
    )
    made.train_from_iterator(CORPUS, trainer)
    return made


def write_bundle(
    folder: Path,
    *,
    template: str | None = TEMPLATE,
    with_tokenizer: bool = True,
    add_bos: bool = False,
    repetition_penalty: float = 1.0,
    **serving: Any,
) -> Path:
    """A bundle as `build` leaves it, as far as the frontend reads it."""
    (folder / "model").mkdir(parents=True)
    made = tokenizer()
    if with_tokenizer:
        made.save(str(folder / TOKENIZER))
    if template is not None:
        (folder / CHAT_TEMPLATE).write_text(template)
    generation = Generation(
        bos_token=made.token_to_id(BOS), add_bos=add_bos, eos_tokens=(made.token_to_id(EOS),),
        temperature=0.7, top_k=40, repetition_penalty=repetition_penalty,
    )  # fmt: skip
    (folder / GENERATION).write_text(generation.model_dump_json())
    manifest = Manifest(
        format=FORMAT, version="0", digest="0123456789abcdef", layout="", plan=plan(**serving), files={},
        weights=None, toolchain={},
    )  # fmt: skip
    (folder / MANIFEST).write_text(manifest.model_dump_json())
    return folder
