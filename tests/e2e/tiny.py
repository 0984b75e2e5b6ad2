"""A bundle of a tiny model with random weights that reads and writes text and chats, built as any is."""

import json
from pathlib import Path

import torch
from transformers.models.llama import LlamaConfig, LlamaForCausalLM

from dualpace.build.bundle import build
from dualpace.build.store import Store
from dualpace.plan.resolve import resolve
from dualpace.spec.models import Spec
from tests.appliance.bundles import BOS, CONTEXT, EOS, NAME, TEMPLATE, VOCAB, tokenizer
from tests.engine.compiled import Quiet


def _checkpoint(folder: Path) -> Path:
    torch.manual_seed(0)
    sizes = {"vocab_size": VOCAB, "hidden_size": 64, "intermediate_size": 128, "max_position_embeddings": CONTEXT}
    heads = {"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
    LlamaForCausalLM(LlamaConfig(**sizes, **heads)).save_pretrained(folder)
    tokenizer().save(str(folder / "tokenizer.json"))
    for name, content in {
        "tokenizer_config": {"bos_token": BOS, "eos_token": EOS, "chat_template": TEMPLATE},
        "generation_config": {"bos_token_id": 0, "eos_token_id": 1, "do_sample": True, "temperature": 0.7, "top_k": 40},
    }.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    return folder


def build_tiny(
    folder: Path, store: Path, nic: dict[str, object] | None = None, changes: dict[str, object] | None = None,
    **serving: object,
) -> Path:  # fmt: skip
    """Build into `folder` through `store`, which may hold the libraries already; `changes` are sections of the spec."""
    spec: dict[str, object] = {
        "name": NAME,
        "model": {"path": str(_checkpoint(folder / "checkpoint")), "dtype": "fp32"},
        "target": {"cpu": True, "kv_budget": "8MiB"},
        "scheduler": {"max_batch": 8, "max_queued_requests": 24},
        "nic": nic or {},
        "serving": serving,
    } | (changes or {})
    bundle = folder / "tiny.bundle"
    build(resolve(Spec.model_validate(spec), folder), bundle, Store(store), Quiet())
    return bundle
