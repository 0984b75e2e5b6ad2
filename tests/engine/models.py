"""Tiny random models made by transformers, saved as checkpoints, and the plans that a spec resolves to for them."""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.models.gemma2 import Gemma2Config
from transformers.models.gemma3 import Gemma3TextConfig
from transformers.models.llama import LlamaConfig
from transformers.models.mistral import MistralConfig
from transformers.models.qwen2 import Qwen2Config
from transformers.models.qwen3 import Qwen3Config

from dualpace.plan.plan import Plan
from dualpace.plan.resolve import resolve
from dualpace.spec.models import Spec

CONTEXT = 512
# More than the rows of one product by the streaming kernel.
MAX_BATCH = 20
CHUNK = 64


class Case(NamedTuple):
    """A model and how it is paged."""

    config: type
    heads: int
    kv_heads: int
    head_dim: int
    page_size: int
    options: Mapping[str, Any] = MappingProxyType({})


_LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
_YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 128}

# Every family, and between them the ratios 1 to 8 and 16, all head sizes and all page sizes.
CASES = {
    "llama": Case(LlamaConfig, 2, 2, 64, 16),
    "llama3-rope": Case(LlamaConfig, 6, 2, 128, 8, {"rope_parameters": _LLAMA3}),
    "yarn": Case(LlamaConfig, 5, 1, 96, 32, {"rope_parameters": _YARN}),
    "mistral": Case(MistralConfig, 4, 2, 80, 16, {"sliding_window": 40}),
    "qwen2": Case(Qwen2Config, 7, 1, 64, 64),
    "qwen3": Case(Qwen3Config, 16, 1, 128, 8),
    "gemma3": Case(
        Gemma3TextConfig,
        4,
        1,
        256,
        16,
        {
            "sliding_window": 24,
            "sliding_window_pattern": 2,
            "query_pre_attn_scalar": 200,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
            "num_hidden_layers": 3,
            "tie_word_embeddings": True,
        },
    ),
    "gemma2": Case(
        Gemma2Config,
        4,
        2,
        64,
        16,
        {
            "sliding_window": 24,
            "attn_logit_softcapping": 3.0,
            "final_logit_softcapping": None,
            "num_hidden_layers": 3,
            "tie_word_embeddings": True,
        },
    ),
    "ratio-6": Case(LlamaConfig, 6, 1, 64, 128),
    "ratio-8": Case(LlamaConfig, 16, 2, 64, 32),
}


def tiny_model(case: Case) -> PreTrainedModel:
    """The case's model in fp32, with weights large enough for attention and norms to matter."""
    sizes = {
        "vocab_size": 131,
        "hidden_size": case.heads * (case.head_dim if case.config is Qwen2Config else 16),
        "intermediate_size": 112,
        "num_hidden_layers": 2,
        "num_attention_heads": case.heads,
        "num_key_value_heads": case.kv_heads,
        "head_dim": case.head_dim,
        "max_position_embeddings": CONTEXT,
        "tie_word_embeddings": False,
        "pad_token_id": None,
    }
    config = case.config(**(sizes | dict(case.options)))
    torch.manual_seed(7)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="eager").eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("norm.weight"):
                parameter.add_(torch.randn_like(parameter) * 0.2)
            else:
                parameter.copy_(torch.randn_like(parameter) * (1.5 / parameter.shape[-1] ** 0.5))
    return model


def plan_of(folder: Path, page_size: int, dtype: str, context: int = CONTEXT, gpu: str = "") -> Plan:
    """The plan of the checkpoint in `folder` on the CPU, or on a `gpu`."""
    spec = Spec.model_validate(
        {
            "name": "tiny",
            "model": {"path": str(folder), "dtype": dtype, "max_context": context},
            "attention": {"page_size": page_size},
            "scheduler": {"max_batch": MAX_BATCH, "prefill_chunk": CHUNK},
            "target": {**({"gpu": gpu} if gpu else {"cpu": True}), "kv_budget": "16MiB"},
        }
    )
    return resolve(spec, folder)
